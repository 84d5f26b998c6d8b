"""Case C45: a search in Korean, Chinese, Thai, Russian and so on finds what is there, with nothing to install."""

from __future__ import annotations

import pytest
from rememberer import rememberer, system

from ondol import Runtime

FACTS = (
    "다음 점검은 금요일 오후로 정했다",
    "发票存放在SharePoint上",
    "会議は木曜日に変更された",
    "Договор подписан вчера",
    "La crèche ouvre à 9h",
    "ประชุมวันศุกร์ที่กรุงเทพมหานคร",
)
FINDS = {
    "점검": 0, "금요일": 0, "점": 0, "发票": 1, "票": 1, "SharePoint": 1, "会議": 2, "木曜日": 2, "договор": 3,
    "creche": 4, "crèche": 4, "กรุงเทพ": 5, "วันศุกร์": 5,
    "그럼 다음번 점검 시간이 언제로 정해졌는지 다시 한번 알려 주시겠어요?": 0,
}  # fmt: skip
NOISE = (
    "회의실 예약은 총무팀",
    "주간 보고는 월요일",
    "likes tea",
    "выходной в субботу",
    "昼食は社員食堂",
    "午餐在食堂",
)


@pytest.mark.both_stores
async def test_each_query_finds_its_fact_and_automatic_recall_does_too(db: str) -> None:
    friend = rememberer()
    async with Runtime(db, agents=[friend]) as rt:
        for fact in (*FACTS, *NOISE):
            await rt.memory.add(fact, agent=friend, user="kim", by="kim")
        for query, fact in FINDS.items():
            found = await rt.memory.search(query, agent=friend, user="kim")
            assert found[0].text == FACTS[fact], query
            await rt.run(friend, query, user="kim")
            assert FACTS[fact] in system(friend), query
