// The page of a Forebay coordinator. All that is shown comes from /api/v1; every text goes into the page as text, never as
// markup. No framework, nothing from elsewhere.
"use strict";

const EVERY_MS = 5000;
const GIVE_UP_MS = 10000;
const JOBS_SHOWN = 20;
const WORKERS_NAMED = 5;
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; texts become text nodes. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/** What this page proves with that it may ask: kept here alone, and gone when the page is loaded again. */
let token = "";

/** Takes the token out of the address, `#token=TOKEN`, where the history and others who look on would see it. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  token = given;
  history.replaceState(null, "", location.pathname);
}

async function get(path) {
  const giveUp = new AbortController();
  const timer = setTimeout(() => giveUp.abort(), GIVE_UP_MS);
  try {
    const headers = { accept: "application/json", ...(token && { authorization: `Bearer ${token}` }) };
    const response = await fetch("/api/v1" + path, { signal: giveUp.signal, headers });
    if (response.status === 401) throw new Error("this coordinator asks for a token: add #token=TOKEN to the address of this page");
    const body = await response.json();
    if (!response.ok) throw new Error(`${body.error.message}: ${body.error.remedy}`);
    return body;
  } finally {
    clearTimeout(timer);
  }
}

function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (count >= 1024 && at + 1 < units.length) { count /= 1024; at += 1; }
  return `${at === 0 || count >= 100 ? Math.round(count) : count.toFixed(1).replace(/\.0$/, "")} ${units[at]}`;
}

const rate = (count) => (Number.isFinite(count) ? `${bytes(count)}/s` : "–");
const percent = (part) => (Number.isFinite(part) ? `${(part * 100).toFixed(1)} %` : "–");
const number = (count) => (Number.isFinite(count) ? count.toLocaleString("en") : "–");
const two = (count) => String(count).padStart(2, "0");
function clock(ms, seconds = true) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}
const list = (value) => (Array.isArray(value) ? value : []);

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60), Math.floor(seconds % 60)];
  return h > 0 ? `${h} h ${m} min` : m > 0 ? `${m} min${s > 0 ? ` ${s} s` : ""}` : `${s} s`;
}

/** A table with a caption for those who do not see it. Cells are texts or elements. */
function table(target, caption, columns, rows, nothing) {
  if (rows.length === 0) {
    target.replaceChildren(make("tbody", {}, make("tr", {}, make("td", { class: "empty" }, nothing))));
    return;
  }
  const kind = (column) => column.kind;
  target.replaceChildren(
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, columns.map((column) => make("th", { scope: "col", class: kind(column) }, column.title)))),
    // Where the table is too wide for the window, each row is a list, and each cell has its title before it.
    make("tbody", {}, rows.map((row) => make("tr", {}, columns.map((column, at) =>
      make("td", { class: kind(column), "data-title": column.title }, make("span", {}, row[at])))))),
  );
}

// ---- plots

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [640, 200, 76, 22, 12];
/** More dots than this are a line by themselves. */
const DOTS = 60;
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
/** Between the marks of the time: those that clocks have. */
const TIMES = [5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE,
  30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR];

/** Marks from 0 to above `value`, bytes: at 1, 2 or 5 times a power of ten, of the unit that they are told in. */
function byteMarks(most) {
  const value = Math.max(most, 1024);
  let unit = 1;
  while (unit * 1000 < value) unit *= 1024;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  const [top, parts] = [[1, 2], [2, 2], [5, 5], [10, 2]].map(([step, parts]) => [step * power * unit, parts]).find(([step]) => step >= value)
    ?? [1024 * unit, 2];
  return Array.from({ length: parts + 1 }, (_, at) => (top * at) / parts);
}

/** Round times between two, as many as have a place. */
function timeMarks(first, last) {
  const step = TIMES.find((step) => (last - first) / step <= 6) ?? 12 * HOUR;
  const zone = new Date(first).getTimezoneOffset() * MINUTE;
  const marks = [];
  for (let at = Math.ceil((first - zone) / step) * step + zone; at <= last; at += step) marks.push(at);
  return marks.map((at) => [at, clock(at, step < MINUTE)]);
}

/** The axes of a plot: of the time that there are points of, and of `marks`, which `name` gives their names. */
function frame(label, points, marks, name) {
  const [first, last, top] = [points[0].at_ms, points.at(-1).at_ms, marks.at(-1)];
  const x = (ms) => LEFT + ((ms - first) / Math.max(1, last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const mark of marks) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(mark), y2: y(mark) }));
    svg.append(draw("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, name(mark)));
  }
  for (const [at, text] of timeMarks(first, last)) {
    svg.append(draw("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
    const anchor = x(at) > WIDTH - 40 ? "end" : x(at) < LEFT + 20 ? "start" : "middle";
    svg.append(draw("text", { x: x(at), y: HEIGHT - 4, "text-anchor": anchor }, text));
  }
  return { svg, x, y };
}

function showSpan(points) {
  const span = points.length > 1 ? (points.at(-1).at_ms - points[0].at_ms) / SECOND : 0;
  $("span").textContent = span > 0 ? `the last ${duration(span)}` : "";
}

function showThroughput(points) {
  const target = $("throughput");
  if (points.length < 2) {
    $("throughput-now").textContent = "";
    return target.replaceChildren(make("p", { class: "empty" }, "There are no samples yet; they come every few seconds."));
  }
  const sources = ["memory", "disk", "origin"];
  const sum = (point) => sources.reduce((all, source) => all + point.all[source], 0);
  const most = Math.max(...points.map(sum));
  const now = points.at(-1).all;
  const label = `Throughput: now ${sources.map((source) => `${rate(now[source])} from ${source}`).join(", ")}; at most ${rate(most)}`;
  const { svg, x, y } = frame(label, points, byteMarks(most), rate);
  const floor = points.map(() => 0);
  for (const source of sources) {
    const below = floor.slice();
    points.forEach((point, at) => { floor[at] += point.all[source]; });
    const over = points.map((point, at) => `${x(point.at_ms).toFixed(1)},${y(floor[at]).toFixed(1)}`);
    const under = points.map((point, at) => `${x(point.at_ms).toFixed(1)},${y(below[at]).toFixed(1)}`).reverse();
    svg.append(draw("path", { class: source, d: `M${over.join("L")}L${under.join("L")}Z` }));
  }
  target.replaceChildren(svg);
  $("throughput-now").textContent = `now ${rate(sum(points.at(-1)))}`;
}

function showHits(points) {
  const target = $("hits");
  const known = points.filter((point) => Number.isFinite(point.hit_ratio));
  if (points.length < 2 || known.length === 0) {
    $("hits-now").textContent = "";
    return target.replaceChildren(make("p", { class: "empty" }, "Nothing was read in this time."));
  }
  const last = known.at(-1).hit_ratio;
  const whole = (part) => `${Math.round(part * 100)} %`;
  const { svg, x, y } = frame(`Hit ratio: last ${percent(last)}`, points, [0, 0.25, 0.5, 0.75, 1], whole);
  let path = "";
  const dots = [];
  points.forEach((point, at) => {
    if (!Number.isFinite(point.hit_ratio)) return;
    const isAfter = Number.isFinite(points[at - 1]?.hit_ratio);
    const isAlone = !isAfter && !Number.isFinite(points[at + 1]?.hit_ratio);
    const [left, up] = [x(point.at_ms).toFixed(1), y(point.hit_ratio).toFixed(1)];
    path += `${isAfter ? "L" : "M"}${left},${up}`;
    // No line leads to one that is alone; of the last one the number is told.
    if (isAlone || point === known.at(-1) || points.length <= DOTS) dots.push([left, up, isAlone || point === known.at(-1) ? 4 : 2.5]);
  });
  svg.append(draw("path", { class: "line", d: path }));
  svg.append(...dots.map(([cx, cy, r]) => draw("circle", { class: "memory", cx, cy, r })));
  target.replaceChildren(svg);
  $("hits-now").textContent = `last ${percent(last)}`;
}

// ---- sections

/** What a worker holds in memory and on disks: as it counts, or, where it does not answer, as it registered. */
function held(member, stats) {
  const store = stats?.store;
  const disks = list(store?.disks);
  const sum = (field) => disks.reduce((all, disk) => all + (disk[field] ?? 0), 0);
  return {
    memory: { used: store?.memory?.used, size: store?.memory?.capacity ?? member?.capacity?.memory },
    disk: { used: store ? sum("used") : undefined, size: store ? sum("capacity") : member?.capacity?.disk },
  };
}

function together(tiers) {
  const sum = (field) => {
    const known = tiers.map((tier) => tier[field]).filter(Number.isFinite);
    return known.length > 0 ? known.reduce((all, count) => all + count, 0) : undefined;
  };
  return { used: sum("used"), size: sum("size") };
}

/** `1.2 GiB of 64 GiB`, and how full that is. */
function usage({ used, size }, name) {
  if (!(size > 0)) return size === 0 ? "none" : "–";
  if (!Number.isFinite(used)) return `${bytes(size)}, use not known`;
  const text = `${bytes(used)} of ${bytes(size)}`;
  return make("span", {}, text, make("meter", { min: 0, max: size, value: used, "aria-label": `${name}: ${text}` }));
}

/** The cards that a worker listens on for RDMA, with how many connections each has. */
function cards(stats) {
  return list(stats?.rdma?.listeners).map((listener) => ({ name: listener.card, connections: listener.connections ?? 0 }));
}

function showCluster(status, stats) {
  $("identity").textContent = `${status.cluster.name ? `${status.cluster.name} · ` : ""}${status.coordinator} · ${status.version}`;
  $("warnings").replaceChildren(...list(status.warnings).map((warning) => make("li", {}, warning)));
  const members = list(status.cluster.members);
  const told = new Map(list(stats?.workers).map((worker) => [worker.name, worker.stats]));
  const active = members.filter((member) => member.state === "active").length;
  const groups = [...new Set(members.map((member) => member.group).filter(Boolean))].sort();
  const holds = members.map((member) => held(member, told.get(member.name)));
  const rdma = members.flatMap((member) => cards(told.get(member.name)));
  const connections = rdma.reduce((all, card) => all + card.connections, 0);
  const shown = [
    ["Workers", `${active} active of ${members.length}`],
    [groups.length > 1 ? "Groups" : "Group", groups.join(", ") || status.cluster.group || "–"],
    ["Memory", usage(together(holds.map((tiers) => tiers.memory)), "memory")],
    ["Disk", usage(together(holds.map((tiers) => tiers.disk)), "disk")],
    ["RDMA", rdma.length > 0 ? `${number(rdma.length)} paths, ${number(connections)} connections` : "not offered"],
    ["Leader", status.leader ? status.leader.name : "none"],
    ["State", status.state_store.reachable ? status.state_store.description : "unreachable"],
  ];
  $("summary").replaceChildren(...shown.map(([title, text]) => make("div", {}, make("dt", {}, title), make("dd", {}, text))));
}

function showWorkers(status, stats, plot) {
  const members = new Map(list(status.cluster.members).map((member) => [member.name, member]));
  const told = new Map(list(stats.workers).map((worker) => [worker.name, worker]));
  const latest = list(plot.points).at(-1)?.workers ?? {};
  const absent = new Set(list(status.absent_drains).map((drain) => drain.worker));
  const names = [...new Set([...members.keys(), ...told.keys(), ...absent])];
  const group = (name) => members.get(name)?.group ?? "";
  names.sort((a, b) => group(a).localeCompare(group(b)) || a.localeCompare(b, "en", { numeric: true }));
  const rows = names.map((name) => {
    const [member, worker, now] = [members.get(name) ?? {}, told.get(name), latest[name]];
    const down = worker?.error;
    const drain = member.drain ? ` ${percent(member.drain.bytes_done / Math.max(1, member.drain.bytes_total))}` : "";
    const state = [member.state, member.warming && "warming", absent.has(name) && "drained"].filter(Boolean).join(", ");
    const health = absent.has(name)
      ? make("span", { class: "muted", title: "forebay cluster undrain takes it back" }, "not there")
      : down
      ? make("span", { class: "bad", title: down }, "does not answer")
      : make("span", { class: worker ? "good" : "muted" }, worker ? "answers" : "not asked yet");
    const { memory, disk } = held(member, worker?.stats);
    const rdma = cards(worker?.stats).map((card) => `${card.name} (${number(card.connections)})`).join(" ");
    const reads = now && now.memory + now.disk + now.origin;
    const hits = reads > 0 ? percent((now.memory + now.disk) / reads) : "–";
    return [name, member.group ?? "–", make("span", {}, state ? `${state}${drain}, ` : "", health), percent(member.share), usage(memory, "memory"), usage(disk, "disk"),
      now ? rate(reads) : "–", hits, rdma || "–", member.version ?? worker?.stats?.version ?? "–"];
  });
  const right = (title) => ({ title, kind: "number" });
  table($("workers"), "Workers with their state, share, fill and throughput", [
    { title: "Worker", kind: "path" }, { title: "Group" }, { title: "State", kind: "words" }, right("Share"), right("Memory"),
    right("Disk"), right("Reads"), right("Hits"), { title: "RDMA", kind: "words" }, { title: "Version" },
  ], rows, "No worker is known. A worker joins with cluster.etcd.endpoints, or is named in cluster.workers.");
}

function fileCounts(part) {
  return `${number(part.files)} files, ${bytes(part.bytes)}`;
}

function showJob(job) {
  const progress = job.progress;
  const title = `${job.spec.kind} ${job.spec.path}`;
  const known = Number.isFinite(progress.percent);
  const running = job.state === "RUNNING";
  const pass = typeof job.pass === "string" ? job.pass : `audit ${job.pass.audit + 1}`;
  const facts = [`done ${fileCounts(progress.done)}`];
  if (progress.total) facts.push(`of ${fileCounts(progress.total)}`);
  else facts.push(`listed so far ${fileCounts(progress.listed)}`);
  if (progress.skipped.files > 0) facts.push(`passed over ${fileCounts(progress.skipped)}`);
  if (progress.freed_bytes > 0) facts.push(`freed ${bytes(progress.freed_bytes)}`);
  if (running) facts.push(`${rate(progress.bytes_per_second)}`);
  if (running && Number.isFinite(progress.eta_seconds)) facts.push(`about ${duration(progress.eta_seconds)} left of this pass`);
  const bar = make("progress", { max: 100, value: known ? progress.percent : undefined, "aria-label": `${title}: ${pass}` });
  const box = make("article", { class: "job" },
    make("h3", {}, title, " ", make("span", { class: job.state === "FAILED" ? "bad" : job.state === "SUCCEEDED" ? "good" : "muted" }, job.state)),
    running ? bar : null,
    make("p", { class: "muted" }, running ? `${pass}${known ? ` ${progress.percent.toFixed(1)} %` : ""}: ` : "", facts.join(", ")),
    list(job.warnings).map((warning) => make("p", { class: "warning" }, warning)));
  const causes = list(job.failures.causes);
  if (causes.length > 0) {
    box.append(make("details", {}, make("summary", {}, `${number(job.failures.count)} failures`),
      make("ul", {}, causes.map((cause) => make("li", {}, `${number(cause.count)} × ${cause.kind}: ${cause.count === 1 && cause.example || cause.message} (${list(cause.first_paths).join(", ")})`)))));
  }
  return box;
}

function showJobs(jobs) {
  const shown = jobs.slice(0, JOBS_SHOWN).map(showJob);
  if (jobs.length === 0) shown.push(make("p", { class: "empty" }, "No jobs."));
  if (jobs.length > JOBS_SHOWN) shown.push(make("p", { class: "muted" }, `${jobs.length - JOBS_SHOWN} older jobs are not shown.`));
  // What someone has opened stays open.
  const open = new Set([...$("jobs").children].map((box, at) => [at, box.querySelector?.("details")?.open]).filter(([, is]) => is).map(([at]) => at));
  $("jobs").replaceChildren(...shown);
  [...$("jobs").children].forEach((box, at) => { const part = box.querySelector("details"); if (part && open.has(at)) part.open = true; });
}

/** On which workers mounts cannot be opened, by their paths. */
function unopened(stats) {
  const workers = new Map();
  for (const worker of list(stats?.workers)) {
    for (const origin of list(worker.stats?.origins).filter((origin) => origin.opened === false)) {
      if (!workers.has(origin.path)) workers.set(origin.path, []);
      workers.get(origin.path).push(worker.name);
    }
  }
  return workers;
}

function showMounts({ mounts, configured }, stats) {
  const missed = unopened(stats);
  const origin = (mount) => {
    const workers = missed.get(mount.path);
    if (!workers) return mount.origin;
    const more = workers.length > WORKERS_NAMED ? ` and ${number(workers.length - WORKERS_NAMED)} more` : "";
    const where = `cannot be opened on ${workers.slice(0, WORKERS_NAMED).join(", ")}${more}: the log there says why`;
    return make("span", {}, `${mount.origin} `, make("span", { class: "bad" }, where));
  };
  const options = (mount) => Object.entries(mount.options ?? {}).map(([name, value]) => `${name}=${value}`).join(" ") || "–";
  const all = [...list(configured).map((mount) => [mount, "configured"]), ...list(mounts).map((mount) => [mount, options(mount)])];
  const rows = all.map(([mount, more]) => [mount.path, origin(mount), more]);
  table($("mounts"), "Mounts", [{ title: "Path", kind: "path" }, { title: "Origin", kind: "path" }, { title: "Options", kind: "path" }], rows, "Nothing is mounted.");
}

function showHottest(files) {
  const rows = files.map((file) => [file.path, `${bytes(file.bytes_per_minute)}/min`]);
  table($("hottest"), "Files of which most was read", [{ title: "File", kind: "path" }, { title: "Read", kind: "number" }], rows, "No worker tells of any.");
}

// ---- the loop

let windowShown = "recent";
let round = 0;

async function refresh() {
  round += 1;
  const mine = round;
  const asked = ["/cluster", "/stats", `/series?window=${windowShown}`, "/jobs", "/mounts"].map(get);
  const [status, stats, plot, jobs, mounts] = await Promise.allSettled(asked);
  if (mine !== round) return;
  const value = (answer) => (answer.status === "fulfilled" ? answer.value : undefined);
  if (value(status)) showCluster(value(status), value(stats));
  if (value(status) && value(stats) && value(plot)) showWorkers(value(status), value(stats), value(plot));
  if (value(plot)) { showThroughput(list(value(plot).points)); showHits(list(value(plot).points)); showSpan(list(value(plot).points)); }
  if (value(jobs)) showJobs(list(value(jobs).jobs));
  if (value(mounts)) showMounts(value(mounts), value(stats));
  if (value(stats)) showHottest(list(value(stats).hottest));
  const failed = [status, stats, plot, jobs, mounts].find((answer) => answer.status === "rejected");
  const reason = failed && (failed.reason.name === "AbortError" ? "no answer" : failed.reason.message);
  $("fresh").textContent = failed ? `not all is current (${reason})` : `as of ${clock(Date.now())}`;
  $("fresh").className = failed ? "bad" : "muted";
}

async function loop() {
  try {
    if (!document.hidden) await refresh();
  } finally {
    setTimeout(loop, EVERY_MS);
  }
}

for (const choice of document.querySelectorAll("input[name=window]")) {
  choice.addEventListener("change", () => { windowShown = choice.value; refresh(); });
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
addEventListener("hashchange", () => { takeToken(); refresh(); });
takeToken();
loop();
