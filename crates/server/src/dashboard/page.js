// The dashboard. What comes from a caller, such as a key or an owner, is set as text only.
"use strict";

const LOCK = "urn:cline:forrst:ext:atomic-lock:fn:";
const CORE = "urn:cline:forrst:fn:";
const PAUSE = 1000;
const MOST_LISTED = 1000;
const MOST_SHOWN = 200;
const MOST_QUEUES = 40;
const MOST_WAITERS = 5;
const MOST_HOLDERS = 5;
const BUCKET = 5;

const byId = (id) => document.getElementById(id);
const state = { locks: [], queues: new Map(), functions: null, skew: 0, hasMore: false, error: null };
const rows = new Map();

// Calls

const apiKey = () => sessionStorage.getItem("forrst-key");

class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** Makes several calls in one request. Each answer is a result or a Refused. */
async function ask(calls) {
  const headers = { "content-type": "application/json" };
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  const batch = calls.map(([name, args], id) => ({
    jsonrpc: "2.0",
    id,
    method: "forrst.call",
    params: { protocol: { name: "forrst", version: "0.1.0" }, id: `page-${id}`, call: { function: name, arguments: args } },
  }));
  const reply = await fetch("rpc", { method: "POST", headers, body: JSON.stringify(batch), signal: AbortSignal.timeout(10_000) });
  if (reply.status === 401) throw new Refused("UNAUTHORIZED", "This server requires an API key.");
  if (reply.status === 403) throw new Refused("FORBIDDEN", "This API key lacks the right to do that.");
  const frames = await reply.json();
  if (!Array.isArray(frames)) throw new Error(frames.error?.message ?? "The server's answer is invalid.");
  const answers = calls.map((_, id) => frames.find((frame) => frame.id === id));
  return answers.map((frame) => {
    const response = frame?.result;
    if (!response) return new Refused("INVALID", frame?.error?.message ?? "There was no answer.");
    byId("node").textContent = response.meta?.node ?? "";
    const [error] = response.errors ?? [];
    return error ? new Refused(error.code, error.message) : response.result;
  });
}

// Times

const now = () => Date.now() + state.skew;

function span(millis) {
  const seconds = Math.max(0, Math.round(millis / 1000));
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

// Tiles

const TILES = [
  { title: "Waiting callers", series: "waiting", unit: "now", value: (s) => s.at(-1) ?? 0, merge: (a, b) => Math.max(a, b), alarming: (v) => v > 0 },
  { title: "Locks granted", series: "granted", unit: "/ s", value: rate },
  { title: "Found held", series: "contended", unit: "/ s", value: rate },
  { title: "Requests", series: "requests", unit: "/ s", value: rate },
  { title: "Failed requests", series: "failures", unit: "/ s", value: rate },
];

function rate(series) {
  const last = series.slice(-10);
  return last.length ? last.reduce((a, b) => a + b, 0) / last.length : 0;
}

const short = (value) => (value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1));

for (const tile of TILES) {
  const element = byId("tile").content.firstElementChild.cloneNode(true);
  element.querySelector("h3").textContent = tile.title;
  element.querySelector("p span").textContent = tile.unit;
  tile.element = element;
  byId("tiles").append(element);
}

function drawTiles(activity) {
  for (const tile of TILES) {
    const series = activity[tile.series];
    const value = tile.value(series);
    const points = bucketed(series, tile.merge ?? ((a, b) => a + b));
    const peak = Math.max(...points, 0);
    tile.element.querySelector("strong").textContent = short(value);
    tile.element.classList.toggle("alarming", Boolean(tile.alarming?.(value)));
    const label = `${tile.title}, last five minutes: ${short(value)} ${tile.unit}, highest ${short(tile.merge ? peak : peak / BUCKET)}`;
    const chart = tile.element.querySelector("svg");
    chart.setAttribute("aria-label", label);
    const line = points.map((point, x) => `${x + 60 - points.length} ${(22.5 - (peak ? point / peak : 0) * 20).toFixed(2)}`).join(" L");
    chart.querySelector(".line").setAttribute("d", points.length ? `M${line}` : "");
    chart.querySelector(".area").setAttribute("d", points.length ? `M${60 - points.length} 24 L${line} L59 24 Z` : "");
  }
}

/** Five seconds in one point, counted from the newest. */
function bucketed(series, merge) {
  const points = [];
  for (let end = series.length; end > 0; end -= BUCKET) {
    points.unshift(series.slice(Math.max(0, end - BUCKET), end).reduce(merge));
  }
  return points;
}

// Locks

/** Splits a full key into the function that its lock belongs to, if any, and the rest. */
function split(key) {
  const rest = key.slice("lock:".length);
  const known = state.functions?.find((name) => rest.startsWith(`${name}:`));
  const name = known ?? rest.match(/^[a-zA-Z]\w*(?:\.\w+)+(?=:)/)?.[0];
  return name ? [name, rest.slice(name.length + 1)] : [null, rest];
}

const holders = (lock) => lock.holders ?? [lock];
const called = (who) => who.caller ?? who.owner;

/** The other keys of a lease on several keys, for display. */
const partners = (lease, key) => (lease.full_keys ?? []).filter((other) => other !== key).map((other) => other.slice("lock:".length));

/** The kind of a lock, unless it is exclusive. */
function kind(lock) {
  if (lock.limit !== undefined) return `${lock.holder_count} of ${lock.limit}`;
  return lock.mode === "shared" ? `shared by ${lock.holder_count}` : "";
}

const needle = () => byId("search").value.trim().toLowerCase();

function matching() {
  const text = needle();
  const has = (value) => value?.toLowerCase().includes(text);
  const isMatch = (lock) =>
    has(lock.key) || holders(lock).some((h) => has(h.owner) || has(h.caller) || has(h.note) || h.full_keys?.some(has)) || state.queues.get(lock.key)?.some((w) => has(w.owner) || has(w.caller));
  return state.locks
    .filter((lock) => !text || isMatch(lock))
    .sort((a, b) => b.waiters - a.waiters || a.acquired_at.localeCompare(b.acquired_at) || a.key.localeCompare(b.key));
}

function drawLocks() {
  const found = matching();
  const shown = found.slice(0, MOST_SHOWN);
  const kept = new Set(shown.map((lock) => lock.key));
  for (const [key, row] of rows) {
    if (!kept.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
  shown.forEach((lock, place) => {
    const row = rows.get(lock.key) ?? newRow(lock.key);
    fill(row, lock);
    const there = byId("rows").children[place];
    if (there !== row) byId("rows").insertBefore(row, there ?? null);
  });
  const total = `${state.locks.length}${state.hasMore ? " or more" : ""}`;
  const hidden = found.length > shown.length ? `, the first ${shown.length} are shown` : "";
  const count = needle() ? `${found.length} of ${total}${hidden}` : `${total}${hidden}`;
  if (byId("count").textContent !== count) byId("count").textContent = count;
  byId("locks").hidden = shown.length === 0;
  byId("empty").hidden = shown.length > 0 || state.error !== null;
  byId("empty").textContent = needle() ? "No held lock matches." : "No lock is held.";
}

function newRow(key) {
  const row = byId("row").content.firstElementChild.cloneNode(true);
  const [name, rest] = split(key);
  const chip = row.querySelector(".function");
  chip.hidden = name === null;
  chip.textContent = name ?? "";
  row.querySelector(".key").textContent = rest;
  row.querySelector(".lock").title = key;
  const button = row.querySelector("button");
  button.setAttribute("aria-label", `Force release ${key}`);
  button.addEventListener("click", () => confirmRelease(key));
  row.dataset.key = key;
  rows.set(key, row);
  return row;
}

function fill(row, lock) {
  const caller = row.querySelector(".caller");
  caller.hidden = !lock.caller;
  caller.textContent = lock.caller ?? "";
  row.querySelector(".owner").textContent = lock.owner;
  row.querySelector(".owner").title = lock.owner;
  const chip = row.querySelector(".kind");
  chip.textContent = kind(lock);
  chip.hidden = chip.textContent === "";
  const note = row.querySelector(".note");
  note.hidden = !lock.note;
  note.textContent = lock.note ?? "";
  const [first] = holders(lock);
  const set = row.querySelector(".set");
  set.textContent = together(first, lock.key);
  set.hidden = set.textContent === "";
  fillOthers(row.querySelector(".others"), lock);
  row.querySelector(".fence").textContent = lock.fence.replace(/^0+(?=\d)/, "");
  row.querySelector(".fence").title = lock.fence;
  tick(row, lock);
  const queue = row.querySelector(".queue");
  queue.hidden = lock.waiters === 0;
  queue.querySelector(".chip").textContent = lock.waiters === 1 ? "1 waits" : `${lock.waiters} wait`;
  const waiting = (state.queues.get(lock.key) ?? []).slice(0, MOST_WAITERS);
  const items = waiting.map((waiter) => {
    const item = document.createElement("li");
    const who = document.createElement("code");
    const time = document.createElement("b");
    who.textContent = waiter.caller ?? waiter.owner;
    who.title = waiter.owner;
    time.textContent = span(now() - Date.parse(waiter.since));
    item.append(who, " ", time);
    return item;
  });
  queue.querySelector("ol").replaceChildren(...items);
}

/** The other keys of a lease, which end together with this one. */
function together(lease, key) {
  const others = partners(lease, key);
  return others.length ? `with ${others.join(", ")}` : "";
}

/** The holders besides the first. */
function fillOthers(list, lock) {
  const others = holders(lock).slice(1, MOST_HOLDERS);
  const items = others.map((holder) => {
    const item = document.createElement("li");
    const who = document.createElement("code");
    who.textContent = called(holder);
    who.title = holder.owner;
    const details = [holder.note, together(holder, lock.key)].filter(Boolean).join(" · ");
    item.append(who, details ? ` ${details}` : "");
    return item;
  });
  const hidden = (lock.holder_count ?? 1) - 1 - others.length;
  if (hidden > 0) {
    const item = document.createElement("li");
    item.textContent = `and ${hidden} more`;
    items.push(item);
  }
  list.hidden = items.length === 0;
  list.replaceChildren(...items);
}

/** Updates what changes with time alone. */
function tick(row, lock) {
  const granted = Date.parse(lock.acquired_at);
  const end = Date.parse(lock.expires_at);
  const left = end - now();
  const part = Math.min(1, Math.max(0, left / Math.max(1, end - granted)));
  row.querySelector(".age").textContent = span(now() - granted);
  row.querySelector(".left span").textContent = span(left);
  row.querySelector(".bar i").style.width = `${(part * 100).toFixed(1)}%`;
  row.classList.toggle("ending", part < 0.1);
}

// Releasing by force

/** The errors for a lease that has ended since it was shown. */
const ENDED = new Set(["LOCK_OWNERSHIP_MISMATCH", "LOCK_NOT_FOUND"]);

async function confirmRelease(key) {
  const lock = state.locks.find((one) => one.key === key);
  if (!lock) return;
  byId("confirm-key").textContent = key;
  const leases = holders(lock);
  const first = lock.caller ? `${lock.caller} (${lock.owner})` : lock.owner;
  byId("confirm-owner").textContent = leases.length > 1 ? leases.map(called).join(", ") : first;
  const others = new Set(leases.flatMap((lease) => lease.full_keys ?? []).filter((other) => other !== key));
  byId("confirm-keys").textContent = others.size ? `Released with it: ${[...others].join(", ")}.` : "";
  const unnamed = (lock.holder_count ?? leases.length) - leases.length;
  byId("confirm-rest").textContent = unnamed > 0 ? `Of ${lock.holder_count} leases only these ${leases.length} end: the server names no more at once.` : "";
  byId("confirm-next").textContent = lock.waiters ? "The next in the queue gets it." : "";
  if ((await open(byId("confirm"))) !== "release") return;
  try {
    // By their fences, so that a lease that was granted while the dialog was open is not released.
    const answers = await ask(leases.map(({ fence }) => [`${LOCK}force-release`, { key, fence }]));
    const refused = answers.filter((answer) => answer instanceof Refused);
    // A lease that has ended by itself counts as a failure only if no other was released.
    const kept = refused.filter((answer) => !ENDED.has(answer.code));
    if (kept.length > 0 || refused.length === answers.length) throw Object.assign(kept[0] ?? refused[0], { ended: answers.length - refused.length });
    const rest = unnamed > 0 ? `: ${answers.length - refused.length} leases. ${unnamed} more hold it.` : "";
    say(`Released ${key}${rest}`);
    await refresh();
  } catch (error) {
    if (ENDED.has(error.code)) {
      const since = error.code === "LOCK_NOT_FOUND" ? "it is free" : "another lease holds it";
      say(`Not released: the lease of ${key} that was shown has ended, and ${since} now.`);
      await refresh().catch(fail);
      return;
    }
    const wantsKey = error.code === "UNAUTHORIZED" || error.code === "FORBIDDEN";
    const part = error.ended > 0 ? `Only ${error.ended} of ${leases.length} leases were released` : "Not released";
    say(`${part}: ${error.message}${wantsKey ? " Set an admin's API key." : ""}`);
  }
}

/**
 * Opens a dialog; resolves to the value of the button that closed it.
 *
 * The `close` event may arrive late, when the dialog is open again, and is ignored then.
 */
function open(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.onclose = () => {
      if (!dialog.open) done(dialog.returnValue);
    };
  });
}

let silence;
function say(text) {
  byId("said").textContent = text;
  byId("said").hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => (byId("said").hidden = true), 6000);
}

// Keeping up

async function refresh() {
  const text = byId("search").value.trim();
  const prefix = text.startsWith("lock:") ? text : "";
  const contended = state.locks.filter((lock) => lock.waiters > 0).slice(0, MOST_QUEUES);
  const calls = [
    [`${CORE}health`, {}],
    [`${LOCK}list`, { limit: MOST_LISTED, ...(prefix && { prefix }) }],
    [`${LOCK}activity`, {}],
    ...contended.map((lock) => [`${LOCK}waiters`, { key: lock.key, limit: MOST_WAITERS }]),
  ];
  if (!state.functions) calls.push([`${CORE}capabilities`, {}]);
  const [health, list, activity, ...others] = await ask(calls);
  if (!state.functions) {
    const capabilities = others.pop();
    if (!(capabilities instanceof Refused)) state.functions = capabilities.functions.filter((name) => !name.startsWith("urn:cline:forrst:"));
  }
  if (list instanceof Refused) throw list;
  const knew = new Set(state.locks.filter((lock) => lock.waiters > 0).map((lock) => lock.key));
  state.locks = list.locks.map((lock) => ({ waiters: 0, ...lock }));
  state.hasMore = list.cursor !== null;
  state.queues = new Map(contended.map((lock, i) => [lock.key, others[i]?.waiters ?? []]));
  if (!(health instanceof Refused)) drawHealth(health);
  if (!(activity instanceof Refused)) {
    drawTiles(activity);
    drawReserved(activity.reserved ?? 0);
  }
  fail(null);
  drawLocks();
  return state.locks.some((lock) => lock.waiters > 0 && !knew.has(lock.key));
}

/** Shows how many free keys are reserved for waiting sets; they are not among the held locks. */
function drawReserved(count) {
  const words = count === 1 ? "1 free key is reserved for a set that waits" : `${count} free keys are reserved for sets that wait`;
  byId("reserved").hidden = count === 0;
  if (byId("reserved").textContent !== words) byId("reserved").textContent = words;
}

function drawHealth(health) {
  state.skew = Date.parse(health.timestamp) - Date.now();
  const store = health.components?.store;
  const words = health.status === "healthy" ? "Live" : `Store: ${store?.message ?? health.status}`;
  drawState(health.status, words);
  byId("version").textContent = `forrst ${health.version}`;
}

function drawState(name, words) {
  byId("state").dataset.state = name;
  if (byId("state").textContent !== words) byId("state").textContent = words;
}

function fail(error) {
  state.error = error;
  byId("notice").hidden = error === null;
  if (error === null) return;
  drawState("offline", "Not live");
  const known = error instanceof Refused;
  const words = known ? error.message : "The server does not answer. Trying again…";
  const hint = error.code === "UNAUTHORIZED" || error.code === "FORBIDDEN" ? " Set an API key with the role observe or admin." : "";
  byId("notice").textContent = words + hint;
}

async function live() {
  for (;;) {
    let pause = PAUSE;
    try {
      // A lock has its first waiters: fetch its queue at once.
      if (!document.hidden && (await refresh())) pause = 0;
    } catch (error) {
      fail(error);
      drawLocks();
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

byId("search").addEventListener("input", drawLocks);
byId("search-form").addEventListener("submit", (event) => event.preventDefault());
byId("key-button").addEventListener("click", async () => {
  byId("key-input").value = "";
  const choice = await open(byId("key-dialog"));
  if (choice === "use" && byId("key-input").value) sessionStorage.setItem("forrst-key", byId("key-input").value.trim());
  if (choice === "forget") sessionStorage.removeItem("forrst-key");
  byId("key-input").value = "";
  byId("key-button").textContent = apiKey() ? "API key set" : "API key…";
});
byId("key-button").textContent = apiKey() ? "API key set" : "API key…";
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, dialog");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("search").focus();
  }
});

live();
