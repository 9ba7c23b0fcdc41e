// The page: asks for what is new, keeps it, shows it. Everything kept is bounded by what the process keeps.
"use strict";

const $ = (id) => document.getElementById(id);
const PATIENCE_MS = 10000, RETRY_MS = 1000, RETRY_MAX_MS = 5000, ROWS = 100;

const state = {
  token: null, mark: "", every: 1000, mayAct: false, classes: [],
  servers: new Map(), jobs: new Map(), heat: [],
  cards: new Map(), rows: new Map(),
  sort: "far", up: false, shown: ROWS, filter: "",
  chosen: null, failures: 0, timer: null, asking: false, waited: new Map(),
};

// --- the token: from the address, where nobody else sees it, then only in this tab --------------------------------

function takeToken() {
  const match = /^#token=([!-~]+)$/.exec(location.hash);
  if (match) {
    sessionStorage.setItem("muninn-token", match[1]);
    history.replaceState(null, "", location.pathname);
  }
  state.token = sessionStorage.getItem("muninn-token");
}

async function call(path, body) {
  const options = { headers: { Authorization: `Bearer ${state.token}` }, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) {
    const error = new Error(value.error || `status ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return value;
}

// --- asking ---------------------------------------------------------------------------------------------------

function link(text, stale) {
  put($("link"), text);
  document.body.classList.toggle("stale", stale);
}

function later(ms) {
  clearTimeout(state.timer);
  state.timer = setTimeout(ask, ms);
}

async function ask() {
  clearTimeout(state.timer);
  // Who looks away wants nothing; whoever is asked for already is on the way.
  if (document.hidden || state.asking) return;
  if (!state.token) return login("");
  state.asking = true;
  try {
    const update = await call(`/api/state?since=${encodeURIComponent(state.mark)}`);
    const began = performance.now();
    apply(update);
    document.documentElement.dataset.updateMs = (performance.now() - began).toFixed(2);
    document.documentElement.dataset.updates = 1 + Number(document.documentElement.dataset.updates || 0);
    state.failures = 0;
    link("live", false);
    if (state.chosen !== null) await askLife();
    later(state.every);
  } catch (error) {
    if (error.status === 401) {
      login(state.mark ? "the token is no longer good" : "that is not the token");
    } else {
      state.failures += 1;
      link(error.status ? `refused: ${error.message}` : "the dashboard does not answer; trying again", true);
      later(Math.min(RETRY_MS * state.failures, RETRY_MAX_MS));
    }
  } finally {
    state.asking = false;
  }
}

function login(why) {
  $("login").hidden = false;
  $("token").focus();
  link(why || "a token is needed", true);
}

async function askLife() {
  try {
    const life = await call(`/api/life?pid=${state.chosen}`);
    Charts.life(life);
  } catch (error) {
    // A job that has ended is taken away by the next update; its last picture stays until then.
    if (error.status !== 404) throw error;
  }
}

// --- what has come ---------------------------------------------------------------------------------------------

function apply(update) {
  if (update.full) {
    state.servers.clear();
    state.jobs.clear();
    state.heat = [];
  }
  state.mark = update.mark;
  state.every = Math.max(update.every_ms, 250);
  state.mayAct = update.may_act;
  state.classes = update.classes;
  for (const address of update.gone_servers) state.servers.delete(address);
  for (const pid of update.gone_jobs) state.jobs.delete(pid);
  for (const server of update.servers) state.servers.set(server.address, server);
  for (const job of update.jobs) state.jobs.set(job.pid, job);
  state.heat = state.heat.concat(update.heat).slice(-Charts.COLUMNS);
  for (const done of update.done) tell(done);
  draw(new Set(update.servers.map((server) => server.address)), update.full);
}

function tell(done) {
  const about = state.waited.get(done.id);
  if (about === undefined) return;
  state.waited.delete(done.id);
  say(done.text, !done.ok);
}

function say(text, bad) {
  put($("said"), text);
  $("said").classList.toggle("bad", Boolean(bad));
}

function draw(changed, all) {
  drawSums();
  drawServers(changed, all);
  drawNode();
  drawJobs();
  drawChosen();
  drawHeat();
}

function drawSums() {
  let silent = 0, granted = 0, pool = 0;
  for (const server of state.servers.values()) {
    silent += server.error ? 1 : 0;
    granted += server.granted;
    pool += server.pool;
  }
  let far = 0, faults = 0, waiting = 0;
  for (const job of state.jobs.values()) {
    far += job.far;
    faults += job.faults;
    waiting += job.waiting;
  }
  put($("sum-servers"), silent ? `${state.servers.size}, ${silent} silent` : String(state.servers.size));
  put($("sum-granted"), pool ? `${Format.size(granted)} of ${Format.size(pool)}` : "-");
  put($("sum-jobs"), String(state.jobs.size));
  put($("sum-far"), Format.size(far));
  put($("sum-faults"), Format.count(faults));
  put($("sum-waiting"), Format.percent(waiting));
}

// --- servers ---------------------------------------------------------------------------------------------------

function newCard(address) {
  const card = make("article", "server");
  const parts = {
    card, name: make("h3"), where: make("p", "where", address), held: make("p"), bar: make("div", "bar"),
    holders: make("ul", "holders"), does: make("p", "where"), drain: make("button"),
  };
  parts.bar.setAttribute("role", "img");
  parts.drain.type = "button";
  parts.drain.addEventListener("click", () => askDrain(address));
  card.append(parts.name, parts.where, parts.held, parts.bar, parts.holders, parts.does, parts.drain);
  return parts;
}

function drawServers(changed, all) {
  const box = $("servers");
  for (const [address, parts] of state.cards) {
    if (!state.servers.has(address)) {
      parts.card.remove();
      state.cards.delete(address);
    }
  }
  for (const [address, server] of state.servers) {
    let parts = state.cards.get(address);
    const fresh = !parts;
    if (fresh) {
      parts = newCard(address);
      state.cards.set(address, parts);
      box.append(parts.card);
    }
    if (fresh || all || changed.has(address)) drawServer(parts, server);
  }
  $("no-servers").hidden = state.servers.size > 0;
}

function drawServer(parts, server) {
  const silent = server.error !== null;
  parts.card.classList.toggle("silent", silent);
  put(parts.name, server.name || server.address);
  for (const part of [parts.bar, parts.holders, parts.does]) part.hidden = silent;
  parts.drain.hidden = silent || !state.mayAct;
  if (silent) {
    put(parts.held, `silent: ${server.error}`);
    return;
  }
  let held = `${Format.size(server.granted)} of ${Format.size(server.pool)} granted`;
  if (server.wiping) held += `, ${Format.size(server.wiping)} being wiped`;
  if (server.drain_ms !== null) {
    held += server.drain_ms ? `; drains, ${Format.time(server.drain_ms / 1000)} left` : "; drains, its time is over";
  }
  put(parts.held, held);
  drawBar(parts.bar, server.holders, server.pool, server.others);
  const named = server.holders.slice(0, 4);
  const rest = server.holders.slice(4).reduce((sum, holder) => sum + holder[1], server.others);
  const lines = named.map(([name, bytes]) => [name, bytes]);
  if (rest > 0) lines.push(["others", rest]);
  while (parts.holders.children.length > lines.length) parts.holders.lastChild.remove();
  while (parts.holders.children.length < lines.length) {
    const item = make("li");
    item.append(make("span", "who"), make("span"));
    parts.holders.append(item);
  }
  lines.forEach(([name, bytes], i) => {
    const item = parts.holders.children[i];
    item.style.setProperty("--hue", hue(name));
    put(item.children[0], name);
    item.children[0].title = name;
    put(item.children[1], Format.size(bytes));
  });
  const words = lines.map(([name, bytes]) => `${name} ${Format.size(bytes)}`);
  parts.bar.setAttribute("aria-label", `held by ${words.join(", ") || "nobody"}`);
  put(parts.does, `${Format.many(server.sessions, "session")}, in ${Format.perSecond(server.bytes_in)}, out ${Format.perSecond(server.bytes_out)}`);
  put(parts.drain, server.drain_ms === null ? "drain" : "end the drain");
}

function askDrain(address) {
  const server = state.servers.get(address);
  if (!server) return;
  const begin = server.drain_ms === null;
  const name = server.name || address;
  const text = begin
    ? `Its clients move what they have there to other servers, and it grants nothing more. ${Format.size(server.granted)} are held.`
    : "It grants memory again.";
  question(begin ? `Drain ${name}?` : `End the drain of ${name}?`, text, null, () => act("/api/drain", { address, begin }));
}

// --- this machine ------------------------------------------------------------------------------------------------

function drawNode() {
  const jobs = [...state.jobs.values()];
  const most = (of) => jobs.filter((job) => job[of] > 0).sort((a, b) => b[of] - a[of]);
  const limits = jobs.reduce((sum, job) => sum + job.limit, 0);
  for (const of of ["here", "far"]) {
    const sorted = most(of), sum = sorted.reduce((all, job) => all + job[of], 0);
    const named = sorted.slice(0, 24).map((job) => [job.name, job[of]]);
    const rest = sorted.slice(24).reduce((all, job) => all + job[of], 0);
    drawBar($(`node-${of}`), named, of === "here" ? limits : sum, rest);
    const words = named.slice(0, 6).map(([name, bytes]) => `${name} ${Format.size(bytes)}`);
    $(`node-${of}`).setAttribute("aria-label", words.join(", ") || "nothing");
    const text = of === "here" ? `${Format.size(sum)} of ${Format.size(limits)}` : Format.size(sum);
    put($(`node-${of}-text`), words.length ? `${text}: ${words.join(", ")}${sorted.length > 6 ? ", …" : ""}` : text);
  }
}

// --- jobs --------------------------------------------------------------------------------------------------------

const COLUMNS = [
  ["name", "job", "", (job) => job.name],
  ["pid", "pid", "wide", (job) => String(job.pid)],
  ["limit", "limit", "", (job) => Format.size(job.limit)],
  ["here", "here", "", (job) => Format.size(job.here)],
  ["far", "far", "", (job) => Format.size(job.far)],
  ["faults", "faults/s", "", (job) => Format.count(job.faults)],
  ["from_far", "from far", "wide", (job) => Format.count(job.from_far)],
  ["waiting", "waiting", "", (job) => Format.percent(job.waiting)],
  ["bytes_in", "in", "wide", (job) => Format.perSecond(job.bytes_in)],
  ["bytes_out", "out", "wide", (job) => Format.perSecond(job.bytes_out)],
];

function makeHead() {
  for (const [key, title, name] of COLUMNS) {
    const head = make("th", name), button = make("button", "", title);
    head.scope = "col";
    head.dataset.key = key;
    button.type = "button";
    button.addEventListener("click", () => {
      state.up = state.sort === key ? !state.up : key === "name" || key === "pid";
      state.sort = key;
      drawJobs();
    });
    head.append(button);
    $("jobs-head").append(head);
  }
}

function newRow(pid) {
  const row = make("tr"), cells = COLUMNS.map(([, , name]) => make("td", name));
  const open = make("button", "name"), warn = make("span", "warn");
  open.type = "button";
  open.addEventListener("click", () => choose(pid));
  cells[0].append(open, warn);
  row.append(...cells);
  return { row, cells, open, warn };
}

function drawJobs() {
  const sort = state.sort, sign = state.up ? 1 : -1;
  const text = (job) => `${job.name} ${job.pid}`.toLowerCase();
  const jobs = [...state.jobs.values()].filter((job) => !state.filter || text(job).includes(state.filter));
  jobs.sort((a, b) => {
    const order = sort === "name" ? a.name.localeCompare(b.name) : a[sort] - b[sort];
    return sign * order || a.pid - b.pid;
  });
  for (const head of $("jobs-head").children) {
    if (head.dataset.key === sort) head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  const shown = jobs.slice(0, state.shown), wanted = new Set(shown.map((job) => job.pid));
  for (const [pid, parts] of state.rows) {
    if (!wanted.has(pid)) {
      parts.row.remove();
      state.rows.delete(pid);
    }
  }
  const body = $("jobs-rows");
  // Only what is out of place is moved: a row that has the focus keeps it.
  let next = body.firstChild;
  for (const job of shown) {
    let parts = state.rows.get(job.pid);
    if (!parts) {
      parts = newRow(job.pid);
      state.rows.set(job.pid, parts);
    }
    drawJob(parts, job);
    if (parts.row === next) next = next.nextSibling;
    else body.insertBefore(parts.row, next);
  }
  $("more").hidden = jobs.length <= shown.length;
  put($("more"), `show more (${jobs.length - shown.length} left)`);
  $("no-jobs").hidden = state.jobs.size > 0;
}

function drawJob(parts, job) {
  put(parts.open, job.name || "?");
  COLUMNS.forEach(([, , , show], i) => {
    if (i) put(parts.cells[i], show(job));
  });
  put(parts.warn, job.notes.slice(0, 3).join("; "));
  parts.warn.hidden = job.notes.length === 0;
  parts.row.classList.toggle("chosen", job.pid === state.chosen);
}

function choose(pid) {
  state.chosen = state.chosen === pid ? null : pid;
  drawJobs();
  drawChosen();
  if (state.chosen !== null) {
    $("life").scrollIntoView({ block: "nearest" });
    ask();
  }
}

function drawChosen() {
  const job = state.jobs.get(state.chosen);
  if (!job) {
    state.chosen = null;
    $("life").hidden = true;
    return;
  }
  $("life").hidden = false;
  put($("life-title"), `${job.name} (${job.pid})`);
  put($("life-notes"), [`${Format.many(job.processes, "process").replace("processs", "processes")}, layout ${job.layout}`, ...job.notes].join("; "));
  const buttons = $("life-buttons");
  if (buttons.children.length === 0) {
    const limit = make("button", "", "change the limit"), close = make("button", "", "close");
    limit.type = close.type = "button";
    limit.addEventListener("click", askLimit);
    close.addEventListener("click", () => choose(state.chosen));
    buttons.append(limit, " ", close);
  }
  buttons.children[0].hidden = !state.mayAct;
}

function askLimit() {
  const job = state.jobs.get(state.chosen);
  if (!job) return;
  question(`Change the limit of ${job.name}?`, `It is ${Format.size(job.limit)}; ${Format.size(job.here)} are here and ${Format.size(job.far)} far.`,
    Format.size(job.limit), (size) => act("/api/limit", { pid: job.pid, job: job.name, size }));
}

// --- times ----------------------------------------------------------------------------------------------------------

function drawHeat() {
  const select = $("heat-class");
  if (select.options.length === 0 && state.classes.length) {
    select.append(new Option("all", "-1"));
    state.classes.forEach((name, number) => select.append(new Option(name, String(number))));
  }
  Charts.heat(state.heat, Number(select.value));
  const rows = Charts.percentiles(state.heat, state.classes), body = $("percentile-rows");
  while (body.children.length > rows.length) body.lastChild.remove();
  rows.forEach((cells, i) => {
    if (!body.children[i]) {
      const row = make("tr");
      row.append(...cells.map(() => make("td")));
      body.append(row);
    }
    cells.forEach((cell, at) => put(body.children[i].children[at], cell));
  });
}

// --- doing something --------------------------------------------------------------------------------------------------

let answered = null;

function question(title, text, size, yes) {
  put($("ask-title"), title);
  put($("ask-text"), text);
  $("ask-size").hidden = size === null;
  $("size").value = size || "";
  answered = yes;
  $("ask").returnValue = "";
  $("ask").showModal();
  if (size === null) {
    // What is asked by accident is answered with no.
    $("ask-no").focus();
  } else {
    $("size").focus();
    $("size").select();
  }
}

function closed() {
  const yes = answered;
  answered = null;
  if (yes && $("ask").returnValue === "yes") yes($("size").value.trim());
}

async function act(path, wish) {
  say("…", false);
  try {
    const { id } = await call(path, wish);
    state.waited.set(id, path);
    if (state.waited.size > 64) state.waited.delete(state.waited.keys().next().value);
    ask();
  } catch (error) {
    say(error.message, true);
  }
}

// --- beginning ----------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  put($("theme"), `theme: ${name}`);
  localStorage.setItem("muninn-theme", name);
  drawHeat();
}

function begin() {
  takeToken();
  makeHead();
  Charts.scale();
  theme(THEMES.includes(localStorage.getItem("muninn-theme")) ? localStorage.getItem("muninn-theme") : "auto");
  $("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || "auto";
    theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = $("token").value.trim();
    sessionStorage.setItem("muninn-token", state.token);
    $("token").value = "";
    $("login").hidden = true;
    ask();
  });
  $("filter").addEventListener("input", () => {
    state.filter = $("filter").value.toLowerCase();
    state.shown = ROWS;
    drawJobs();
  });
  $("more").addEventListener("click", () => {
    state.shown += ROWS;
    drawJobs();
  });
  $("heat-class").addEventListener("change", drawHeat);
  $("ask").addEventListener("close", closed);
  // Enter in the field of the size is a yes, not the first button of the form.
  $("size").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      $("ask").close("yes");
    }
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !$("ask").open) {
      event.preventDefault();
      $("filter").focus();
    } else if (event.key === "Escape" && !$("ask").open && state.chosen !== null) {
      choose(state.chosen);
    }
  });
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("hashchange", () => {
    takeToken();
    $("login").hidden = true;
    ask();
  });
  ask();
}

begin();
