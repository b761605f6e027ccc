// The page of a Forebay coordinator. All that is shown comes from /api/v1; every text goes into the page as text, never as
// markup. No framework, nothing from elsewhere.
"use strict";

const EVERY_MS = 5000;
const GIVE_UP_MS = 10000;
const JOBS_SHOWN = 20;
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

async function get(path) {
  const giveUp = new AbortController();
  const timer = setTimeout(() => giveUp.abort(), GIVE_UP_MS);
  try {
    const response = await fetch("/api/v1" + path, { signal: giveUp.signal, headers: { accept: "application/json" } });
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
  return `${at === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[at]}`;
}

const rate = (count) => (Number.isFinite(count) ? `${bytes(count)}/s` : "–");
const percent = (part) => (Number.isFinite(part) ? `${(part * 100).toFixed(1)} %` : "–");
const number = (count) => (Number.isFinite(count) ? count.toLocaleString("en") : "–");
const clock = (ms) => new Date(ms).toLocaleTimeString();
const list = (value) => (Array.isArray(value) ? value : []);

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60), Math.floor(seconds % 60)];
  return h > 0 ? `${h} h ${m} min` : m > 0 ? `${m} min ${s} s` : `${s} s`;
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
    make("tbody", {}, rows.map((row) => make("tr", {}, columns.map((column, at) => make("td", { class: kind(column) }, row[at]))))),
  );
}

// ---- plots

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [640, 200, 70, 22, 10];

/** The next larger 1, 2 or 5 times a power of ten. */
function niceAbove(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function frame(label, points, top, name) {
  const x = (ms) => LEFT + ((ms - points[0].at_ms) / Math.max(1, points.at(-1).at_ms - points[0].at_ms)) * (WIDTH - LEFT - 8);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(top * part), y2: y(top * part) }));
    svg.append(draw("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, name(top * part)));
  }
  for (const [at, anchor] of [[0, "start"], [points.length - 1, "end"]]) {
    svg.append(draw("text", { x: x(points[at].at_ms), y: HEIGHT - 6, "text-anchor": anchor }, clock(points[at].at_ms)));
  }
  return { svg, x, y };
}

function showThroughput(points) {
  const target = $("throughput");
  if (points.length < 2) return target.replaceChildren(make("p", { class: "empty" }, "No samples yet."));
  const sources = ["memory", "disk", "origin"];
  const sum = (point) => sources.reduce((all, source) => all + point.all[source], 0);
  const most = Math.max(...points.map(sum));
  const now = points.at(-1).all;
  const label = `Throughput: now ${sources.map((source) => `${rate(now[source])} from ${source}`).join(", ")}; at most ${rate(most)}`;
  const { svg, x, y } = frame(label, points, niceAbove(most), rate);
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
  const { svg, x, y } = frame(`Hit ratio: last ${percent(last)}`, points, 1, percent);
  let path = "";
  let pen = "M";
  for (const point of points) {
    if (!Number.isFinite(point.hit_ratio)) { pen = "M"; continue; }
    // A point alone is a dot.
    path += `${pen}${x(point.at_ms).toFixed(1)},${y(point.hit_ratio).toFixed(1)}${pen === "M" ? "h1" : ""}`;
    pen = "L";
  }
  svg.append(draw("path", { class: "line", d: path }));
  target.replaceChildren(svg);
  $("hits-now").textContent = `last ${percent(last)}`;
}

// ---- sections

function showCluster(status) {
  $("identity").textContent = `${status.coordinator} · ${status.version}`;
  $("warnings").replaceChildren(...list(status.warnings).map((warning) => make("li", {}, warning)));
  const members = list(status.cluster.members);
  const active = members.filter((member) => member.state === "active").length;
  const sum = (field) => members.reduce((all, member) => all + (member.capacity?.[field] ?? 0), 0);
  const cards = [
    ["Leader", status.leader ? status.leader.name : "none"],
    ["State", status.state_store.reachable ? status.state_store.description : "unreachable"],
    ["Workers", `${active} active of ${members.length}`],
    ["Memory", bytes(sum("memory"))],
    ["Disk", bytes(sum("disk"))],
  ];
  $("summary").replaceChildren(...cards.map(([title, text]) => make("div", {}, make("dt", {}, title), make("dd", {}, text))));
}

function showWorkers(status, stats, plot) {
  const members = new Map(list(status.cluster.members).map((member) => [member.name, member]));
  const told = new Map(list(stats.workers).map((worker) => [worker.name, worker]));
  const latest = list(plot.points).at(-1)?.workers ?? {};
  const names = [...new Set([...members.keys(), ...told.keys()])].sort();
  const rows = names.map((name) => {
    const [member, worker, now] = [members.get(name) ?? {}, told.get(name), latest[name]];
    const down = worker?.error;
    const state = [member.state, member.warming && "warming"].filter(Boolean).join(", ") || "–";
    const drain = member.drain ? ` ${percent(member.drain.bytes_done / Math.max(1, member.drain.bytes_total))}` : "";
    const health = down
      ? make("span", { class: "bad", title: down }, "does not answer")
      : make("span", { class: worker ? "good" : "muted" }, worker ? "answers" : "not asked yet");
    return [name, member.group ?? "–", state + drain, health, percent(member.share), now ? rate(now.memory) : "–",
      now ? rate(now.disk) : "–", now ? rate(now.origin) : "–", member.version ?? "–"];
  });
  const right = (title) => ({ title, kind: "number" });
  table($("workers"), "Workers with their state, share and throughput", [
    { title: "Worker" }, { title: "Group" }, { title: "State" }, { title: "Health" }, right("Share"), right("Memory"),
    right("Disk"), right("Origin"), { title: "Version" },
  ], rows, "No worker is known.");
}

function tally(part) {
  return `${number(part.files)} files, ${bytes(part.bytes)}`;
}

function showJob(job) {
  const progress = job.progress;
  const title = `${job.spec.kind} ${job.spec.path}`;
  const known = Number.isFinite(progress.percent);
  const running = job.state === "RUNNING";
  const pass = typeof job.pass === "string" ? job.pass : `audit ${job.pass.audit + 1}`;
  const facts = [`done ${tally(progress.done)}`];
  if (progress.total) facts.push(`of ${tally(progress.total)}`);
  else facts.push(`listed so far ${tally(progress.listed)}`);
  if (progress.skipped.files > 0) facts.push(`passed over ${tally(progress.skipped)}`);
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
      make("ul", {}, causes.map((cause) => make("li", {}, `${number(cause.count)} × ${cause.kind}: ${cause.message} (${list(cause.first_paths).join(", ")})`)))));
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

function showMounts(mounts) {
  const options = (mount) => Object.entries(mount.options ?? {}).map(([name, value]) => `${name}=${value}`).join(" ") || "–";
  const rows = mounts.map((mount) => [mount.path, mount.origin, options(mount)]);
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
  if (value(status)) showCluster(value(status));
  if (value(status) && value(stats) && value(plot)) showWorkers(value(status), value(stats), value(plot));
  if (value(plot)) { showThroughput(list(value(plot).points)); showHits(list(value(plot).points)); }
  if (value(jobs)) showJobs(list(value(jobs).jobs));
  if (value(mounts)) showMounts(list(value(mounts).mounts));
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
loop();
