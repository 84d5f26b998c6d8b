from ondol.cli import main

main()
