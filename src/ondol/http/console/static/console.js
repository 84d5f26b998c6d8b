// What makes a page grow while things happen. Everything works without it: it only asks for the same page again
// when something was written down, and puts in what is new. Pieces of an answer that is being written come as they are.

const root = document.body.dataset.root;
const link = document.getElementById("link");
const KINDS = [
  "run.accepted", "run.origin", "run.replayed", "run.queued", "run.started", "run.resumed", "run.waiting",
  "run.cancelling", "run.completed", "run.failed", "run.cancelled", "run.expired", "run.parked", "run.joined",
  "session.committed", "step.started", "step.completed", "step.failed", "context.built", "context.compacted",
  "model.started", "model.completed", "effect.planned", "effect.started", "effect.succeeded", "effect.failed",
  "effect.unknown", "effect.resolved", "effect.abandoned", "effect.expired", "ask.opened", "ask.decided",
  "ask.expired", "child.started", "child.finished",
];
const BEGUN_ANEW = ["model.started", "step.failed", "run.resumed"]; // what was written of an answer does not count

// --- the same page again, and what is new in it -----------------------------------------------------------------

let asking = false, again = false;

let out = false;  // the token does not count any more

function missing() {
  return out ? "signed out: load the page again" : "the server is away, trying again";
}

async function refresh() {
  if (asking) { again = true; return true; }
  asking = true;
  let came = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (answer.ok) {
      put(new DOMParser().parseFromString(await answer.text(), "text/html"));
      came = true;
    }
    out = answer.status === 401;
  } catch { /* the server is away: whoever called comes back */ }
  asking = false;
  if (again) { again = false; return refresh(); }
  return came;
}

function put(fresh) {
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 120;
  const was = document.getElementById("title")?.dataset.say ?? document.querySelector("[data-say]")?.dataset.say;
  for (const now of fresh.querySelectorAll("[data-live][id]")) {
    const old = document.getElementById(now.id);
    if (old) merge(old, now);
  }
  const after = document.getElementById("title")?.dataset.say ?? document.querySelector("[data-say]")?.dataset.say;
  if (after && after !== was) document.getElementById("said").textContent = after;
  write();
  if (atEnd && document.getElementById("chat")) scrollTo(0, document.body.scrollHeight);
  decorate();
}

function merge(old, now) {
  keep(old, now);
  if (old.isEqualNode(now)) return;
  if (!now.hasAttribute("data-keyed")) { swap(old, now); return; }
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const child of [...old.children]) if (!child.id) child.remove();
  const mine = new Map([...old.children].map((child) => [child.id, child]));
  let at = old.firstElementChild;
  for (const child of [...now.children]) {
    const known = child.id && mine.get(child.id);
    if (!known) { old.insertBefore(document.adoptNode(child), at); continue; }
    mine.delete(child.id);
    if (known === at) at = at.nextElementSibling; else old.insertBefore(known, at);
    merge(known, child);
  }
  for (const gone of mine.values()) if (inUse(gone)) changedElsewhere(gone); else gone.remove();
}

// What a person did to the page stays.
function keep(old, now) {
  const all = (selector) => [old, ...old.querySelectorAll(selector)].filter((e) => e.matches(selector));
  const same = (e, by) => [now, ...now.querySelectorAll(by)].find((other) => other.matches(by));
  for (const e of all("details[id]")) {
    const other = same(e, `details[id="${CSS.escape(e.id)}"]`);
    if (other) other.open = e.open;
  }
  for (const e of all("button.copy")) e.remove();
  for (const e of all("[data-has-copy]")) e.removeAttribute("data-has-copy");
  for (const e of all('input[name="key"]')) {
    const other = same(e, 'input[name="key"]');
    if (other && e.form?.getAttribute("action") === other.form?.getAttribute("action")) other.value = e.value;
  }
}

function swap(old, now) {
  if (inUse(old)) { changedElsewhere(old); return; }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const places = focused && [...old.querySelectorAll("a, button, summary, input")].indexOf(focused);
  const fresh = document.adoptNode(now);
  old.replaceWith(fresh);
  if (focused) [...fresh.querySelectorAll("a, button, summary, input")][places]?.focus({ preventScroll: true });
}

const inUse = (e) => e.querySelector("form[data-touched]") !== null;

function changedElsewhere(e) {
  if (e.querySelector(".fresh")) return;
  const note = document.createElement("p");
  note.className = "fresh";
  note.setAttribute("role", "status");
  note.textContent = "This changed meanwhile. What you write is kept; load the page again to see what is new.";
  e.prepend(note);
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form");
  if (form && !form.matches("[data-send]")) form.dataset.touched = "";
});

// --- what happens, as it happens ----------------------------------------------------------------------------------

let source = null, lastId = "", soon = null, wait = 500, polling = null;

const state = (words, lost) => { link.textContent = words; link.className = lost ? "link lost" : "link"; link.hidden = !words; };

function later(ms = 60) {
  clearTimeout(soon);
  soon = setTimeout(refresh, ms);
}

function address() {
  const live = document.getElementById("live").dataset;
  if (live.events) return [live.events, live.after];
  if (live.session !== undefined) return [`${root}/v1/sessions/${encodeURIComponent(live.session)}/events`, live.after];
  return null;
}

function listen() {
  const where = address();
  if (!where || document.hidden) { state(""); return; }
  const after = lastId || where[1];
  const url = new URL(where[0], location.href);
  if (after) url.searchParams.set("after", after);
  source = new EventSource(url);
  source.onopen = () => { wait = 500; state("live"); later(); };
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) { state("the server is away, trying again", true); return; }
    source = null;
    comeBack();
  };
  for (const kind of KINDS) source.addEventListener(kind, (event) => {
    lastId = event.lastEventId;
    if (BEGUN_ANEW.includes(kind)) takeBack(event);
    later();
  });
  source.addEventListener("model.delta", (event) => {
    const [draft, data] = drafted(event);
    if (data.kind !== "text") return;
    said.set(draft, (said.get(draft) ?? "") + data.text);
    write();
    follow();
  });
  source.addEventListener("message.snapshot", (event) => {
    const [draft, data] = drafted(event);
    said.set(draft, data.text);
    write();
    follow();
  });
}

// The stream ended: the run has, or the server has. The page says which.
async function comeBack() {
  const came = await refresh();
  if (came && !address()) { state(""); return; }
  if (!came) state(missing(), true);
  if (out) return;
  wait = Math.min(wait * 2, 8000);
  setTimeout(() => { if (!source) listen(); }, wait);
}

// The answers that are being written, by run and step. Their place on the page may come after their first piece.
const said = new Map();

function drafted(event) {
  const { data } = JSON.parse(event.data);
  return [`${runOf(event)}-${data.step}`, data];
}

function takeBack(event) {
  const of = `${runOf(event)}-`;
  for (const draft of [...said.keys()]) if (draft.startsWith(of)) said.delete(draft);
}

function runOf(event) {
  const { data, id } = JSON.parse(event.data);
  return data.run ?? id?.split("/")[0] ?? location.pathname.split("/").pop();
}

function write() {
  for (const e of document.querySelectorAll("[data-draft]")) {
    const text = said.get(e.dataset.draft) ?? "";
    if (e.textContent !== text) e.textContent = text;
  }
}

function follow() {
  if (document.getElementById("chat") && innerHeight + scrollY >= document.body.scrollHeight - 160) {
    scrollTo(0, document.body.scrollHeight);
  }
}

function poll() {
  const seconds = Number(document.getElementById("live").dataset.poll);
  clearTimeout(polling);
  if (!seconds || document.hidden) return;
  polling = setTimeout(async () => {
    const came = await refresh();
    state(came ? "" : missing(), !came);
    if (!out) poll();
  }, seconds * 1000);
}

// A browser holds few connections to a server: a tab that nobody looks at gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { source?.close(); source = null; clearTimeout(polling); return; }
  refresh();
  if (!source) listen();
  poll();
});

// --- small things -------------------------------------------------------------------------------------------------

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-once]")) return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  setTimeout(() => { for (const b of form.querySelectorAll("button")) b.disabled = true; });
});

addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

function decorate() {
  if (!navigator.clipboard) return;
  for (const twin of document.querySelectorAll("[data-copy]:not([data-has-copy])")) {
    twin.dataset.hasCopy = "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.setAttribute("aria-label", "Copy the command");
    button.innerHTML = '<svg class="i" aria-hidden="true"><use href="#i-copy"/></svg>';
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(twin.firstChild.textContent);
      document.getElementById("said").textContent = "copied";
    });
    twin.append(button);
  }
}

let before = "";
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (typing && event.key === "Enter" && (event.ctrlKey || event.metaKey)) { typing.form?.requestSubmit(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (before === "g") {
    before = "";
    document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  const rows = [...document.querySelectorAll("[data-row], .timeline summary")];
  const at = rows.indexOf(document.activeElement);
  switch (event.key) {
    case "g": before = "g"; setTimeout(() => { before = ""; }, 1200); break;
    case "/": document.querySelector("[data-search]")?.focus(); event.preventDefault(); break;
    case "?": document.getElementById("keys").showModal(); break;
    case "j": rows[Math.min(at + 1, rows.length - 1)]?.focus(); break;
    case "k": rows[Math.max(at - 1, 0)]?.focus(); break;
  }
});

decorate();
if (document.getElementById("chat")) scrollTo(0, document.body.scrollHeight);
listen();
poll();
