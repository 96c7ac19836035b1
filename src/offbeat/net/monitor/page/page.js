"use strict";
(() => {
  const POLL = 2000, RATE_OVER = 30000, LANES = 60, POINTS = 600, ROWS = 40000, LATE = 10000;
  // not relative: an address with a password in it may not be the base of a request
  const HERE = location.protocol + "//" + location.host + location.pathname.replace(/[^/]*$/, "");
  const at = (id) => document.getElementById(id);
  const chosen = { axis: "t", window: "1800", names: null };
  const seen = { evaluations: [], metrics: {}, nextMetric: null, rows: [], nextRow: null, samples: [], snapshot: null };

  // ---- text ----

  const whole = new Intl.NumberFormat("en");
  function sig(x) {
    if (!Number.isFinite(x)) return "–";
    if (x === 0) return "0";
    return Math.abs(x) >= 1000 ? whole.format(Math.round(x)) : String(Number(x.toPrecision(3)));
  }
  function size(bytes) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (bytes >= 1000 && i < units.length - 1) { bytes /= 1000; i += 1; }
    return (i ? sig(bytes) : String(Math.round(bytes))) + " " + units[i];
  }
  // as `duration_text` of offbeat.units, with which a test compares it
  function span(seconds) {
    const two = (n, large, small) => n ? `${large} ${String(n).padStart(2, "0")} ${small}` : large;
    if (seconds < 120) return `${Number(Number(seconds.toFixed(2)).toPrecision(3))} s`;
    const s = Math.round(seconds), min = Math.round(seconds / 60), h = Math.round(seconds / 3600);
    if (s < 7200) return two(s % 60, `${Math.floor(s / 60)} min`, "s");
    if (min < 2880) return two(min % 60, `${Math.floor(min / 60)} h`, "min");
    return two(h % 24, `${Math.floor(h / 24)} ${h % 24 ? "d" : "days"}`, "h");
  }

  // ---- elements ----

  function make(name, className, text) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }
  function draw(name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }
  function empty(place, words) { place.replaceChildren(make("p", "empty", words)); }

  // ---- axes ----

  function ticks(low, high, about) {
    const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) found.push(i * step);
    return found;
  }
  const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];
  function timeTicks(low, high, about) {
    const raw = (high - low) / about;
    if (raw < 1) return ticks(low, high, about);
    const step = STEPS.find((s) => s >= raw) || 86400 * Math.ceil(raw / 86400);
    const found = [];
    for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(i * step);
    return found;
  }
  function clock(t) {
    if (t !== Math.round(t)) return sig(t) + " s";
    const s = Math.round(t), two = (n) => String(n).padStart(2, "0");
    const head = s >= 3600 ? Math.floor(s / 3600) + ":" + two(Math.floor(s / 60) % 60) : Math.floor(s / 60);
    return head + ":" + two(s % 60);
  }
  function frame(place) {  // the same for every plot, so that a moment has one place in all of them
    const w = Math.max(280, place.clientWidth || 900);
    return { w, left: w < 560 ? 84 : 130, right: w < 560 ? 48 : 66 };
  }

  // ---- the metrics ----

  function thin(points) {
    if (points.length <= POINTS) return points;
    const step = (points.length - 1) / (POINTS - 1);
    return Array.from({ length: POINTS }, (_, i) => points[Math.round(i * step)]);
  }
  const valuesOf = (name) => seen.evaluations.filter((m) => Number.isFinite(m[name]));
  function number(name, value) {
    return seen.metrics[name].share || Math.abs(value) < 1000 ? value.toFixed(4) : sig(value);
  }
  function bestOf(name) {
    const best = seen.metrics[name].higher ? Math.max : Math.min;
    return valuesOf(name).reduce((found, m) => best(found, m[name]), seen.metrics[name].higher ? -Infinity : Infinity);
  }
  function shownNames() {
    const names = Object.keys(seen.metrics), usual = [...new Set([names[0], "loss"])];
    return names.filter((name) => (chosen.names ?? usual).includes(name));
  }
  function offerMetrics() {
    const names = Object.keys(seen.metrics), shown = shownNames(), fold = at("statistics");
    const of = (statistic) => names.filter((name) => seen.metrics[name].statistic === statistic);
    at("names").hidden = names.length < 2;
    fold.hidden = !of(true).length;
    for (const [place, offered] of [[at("names"), of(false)], [fold.querySelector("div"), of(true)]]) {
      if (place.children.length !== offered.length) place.replaceChildren(...offered.map(switchOf));
      for (const button of place.children)
        button.setAttribute("aria-pressed", String(shown.includes(button.dataset.value)));
    }
  }
  function switchOf(name) {
    const button = make("button", "", seen.metrics[name].words);
    button.type = "button";
    button.dataset.value = name;
    button.addEventListener("click", () => choose(name));
    return button;
  }
  function choose(name) {
    const shown = shownNames();
    chosen.names = shown.includes(name) ? shown.filter((other) => other !== name) : [...shown, name];
    drawAll();
  }
  // seconds since the run began, for a time of its clock, which starts with the server
  function since(t) {
    return Math.max(0, t - (seen.snapshot.began ?? 0));
  }
  function timeShown() {
    const now = Math.max(since(seen.snapshot.now), 1e-9);
    return [chosen.window === "all" ? 0 : Math.max(0, now - Number(chosen.window)), now];
  }
  function within(points, place, low) {
    const first = points.findIndex((m) => place(m) >= low);
    return first < 0 ? [] : points.slice(first);
  }
  function drawMetrics() {
    const place = at("metrics"), axis = chosen.axis, shown = shownNames();
    if (!seen.evaluations.length) return empty(place, "The model has not been evaluated.");
    if (!shown.length) return empty(place, "Choose a metric.");
    const versions = seen.evaluations.map((m) => m.version);
    const [x0, x1] = axis === "t" ? timeShown() : [Math.min(...versions), Math.max(...versions, 1)];
    const { w, left, right } = frame(place), each = 190, bottom = 26, h = each * shown.length + bottom;
    const x = (v) => left + (v - x0) / Math.max(1e-9, x1 - x0) * (w - left - right);
    const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": shown.map(said).join("; ") });
    const marks = axis === "t" ? timeTicks(x0, x1, w / 120) : ticks(x0, x1, w / 120).filter(Number.isInteger);
    for (const v of marks) {
      svg.append(draw("line", { class: "grid", x1: x(v), x2: x(v), y1: 20, y2: h - bottom }));
      svg.append(draw("text", { x: x(v), y: h - 6, "text-anchor": "middle" }, axis === "t" ? clock(v) : whole.format(v)));
    }
    shown.forEach((name, i) => drawCurve(svg, name, x, { low: x0, left, right: w - right, top: each * i + 24, bottom: each * (i + 1) - 8 }));
    place.replaceChildren(svg);
  }
  function said(name) {
    const last = valuesOf(name).at(-1), words = seen.metrics[name].words;
    return last ? `${words} ${number(name, last[name])} at version ${last.version}` : `${words}: none`;
  }
  function drawCurve(svg, name, x, box) {
    const share = seen.metrics[name].share, along = chosen.axis === "t" ? (m) => since(m.t) : (m) => m.version;
    const points = thin(within(valuesOf(name), along, box.low));
    svg.append(draw("text", { class: "lane", x: box.left, y: box.top - 8 }, seen.metrics[name].words));
    if (!points.length) return svg.append(draw("text", { x: box.left, y: box.top + 20 }, valuesOf(name).length ? "no number in the time shown" : "no number so far"));
    const ys = points.map((m) => m[name]), low = Math.min(...ys), high = Math.max(...ys);
    const pad = Math.max(share ? 0.02 : 1e-9 + 0.02 * Math.abs(high), 0.08 * (high - low));
    const y0 = share ? Math.max(0, low - pad) : low - pad, y1 = share ? Math.min(1, high + pad) : high + pad;
    const y = (v) => box.top + (y1 - v) / (y1 - y0) * (box.bottom - box.top);
    for (const v of ticks(y0, y1, 5)) {
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }));
      svg.append(draw("text", { x: box.left - 8, y: y(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(6)))));
    }
    const path = points.map((m, i) => (i ? "L" : "M") + x(along(m)).toFixed(1) + " " + y(m[name]).toFixed(1));
    const last = points.at(-1), end = { x: x(along(last)), y: y(last[name]) };
    svg.append(draw("path", { class: "curve", d: path.join("") }));
    svg.append(draw("circle", { class: "point", cx: end.x, cy: end.y, r: 4 }));
    svg.append(draw("text", { class: "lane", x: end.x + 9, y: end.y + 4 }, sig(last[name])));
  }

  // ---- the timeline ----

  const OVER = new Set(["arrived", "lost", "left", "discard"]);
  function spans(from, now) {
    const open = new Map(), found = [];
    const close = (client, t, kind) => {
      const begun = open.get(client);
      open.delete(client);
      if (begun && t >= from) found.push({ ...begun, client, end: t, kind: kind || begun.kind });
    };
    for (const [, clocked, name, client, task, steps, staleness] of seen.rows) {
      const t = since(clocked);
      if (name === "train") { close(client, t); open.set(client, { start: t, task, steps, kind: "training" }); }
      else if (name === "ready") { close(client, t); open.set(client, { start: t, task, steps, kind: "waiting" }); }
      else if (OVER.has(name) && open.has(client)) {
        const begun = open.get(client);
        if (name === "left" || begun.task === task) {
          begun.staleness = staleness;
          close(client, t, name === "lost" || name === "left" ? "lost" : undefined);
        }
      }
    }
    for (const client of [...open.keys()]) close(client, now);
    return found;
  }
  function words(s) {
    const parts = [`task ${s.task}`, `${s.steps} steps`, span(s.end - s.start)];
    if (s.staleness !== undefined && s.staleness !== null) parts.push(`staleness ${s.staleness}`);
    return (s.kind === "waiting" ? "waiting to send: " : s.kind === "lost" ? "lost: " : "") + parts.join(", ");
  }
  function drawTimeline() {
    const place = at("timeline"), snapshot = seen.snapshot;
    if (!snapshot) return;
    const joined = snapshot.sites.filter((site) => site.client >= 0);
    if (!joined.length) return empty(place, "No site has joined.");
    const [from, now] = timeShown();
    const lanes = joined.slice(0, LANES);
    const { w, left, right } = frame(place), lane = lanes.length > 24 ? 15 : 24, top = 14;
    const letters = Math.floor(left / 7.2);
    const h = top + lane * lanes.length + 24;
    const x = (t) => left + Math.max(0, t - from) / Math.max(1e-9, now - from) * (w - left - right);
    const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, role: "img",
      "aria-label": "What each site has been doing" });
    const row = new Map(lanes.map((site, i) => [site.client, i]));
    for (const v of timeTicks(from, now, w / 120)) {
      svg.append(draw("line", { class: "grid", x1: x(v), x2: x(v), y1: top, y2: h - 20 }));
      svg.append(draw("text", { x: x(v), y: h - 4, "text-anchor": "middle" }, clock(v)));
    }
    lanes.forEach((site, i) => {
      const name = site.name.length > letters ? site.name.slice(0, letters - 1) + "…" : site.name;
      svg.append(draw("text", { class: "lane", x: left - 10, y: top + lane * i + lane / 2 + 4, "text-anchor": "end" }, name));
      svg.append(draw("rect", { class: "base", x: left, y: top + lane * i + 3, width: w - left - right, height: lane - 6, rx: 3 }));
    });
    for (const s of spans(from, now)) {
      if (!row.has(s.client)) continue;
      const length = Math.max(1, x(s.end) - x(s.start));
      const bar = draw("rect", { class: `span ${s.kind}${length < 4 ? " narrow" : ""}`, x: x(s.start),
        y: top + lane * row.get(s.client) + 3, width: length, height: lane - 6, rx: Math.min(3, length / 4) });
      bar.append(draw("title", {}, words(s)));
      svg.append(bar);
    }
    for (const [, t, name] of seen.rows)
      if (name === "aggregate" && since(t) >= from)
        svg.append(draw("line", { class: "version-line", x1: x(since(t)), x2: x(since(t)), y1: 2, y2: top - 3 }));
    place.replaceChildren(svg);
    const more = joined.length - lanes.length;
    const begun = seen.rows.length ? since(seen.rows[0][1]) : 0, notes = [];
    if (more > 0) notes.push(`The first ${LANES} sites; ${more} more are in the table.`);
    if (seen.rows.length && seen.rows[0][0] > 0 && begun > from) notes.push(`Nothing is shown from before ${clock(Math.round(begun))}.`);
    at("timeline-note").textContent = notes.join(" ");
  }

  // ---- numbers ----

  function rates() {
    const first = seen.samples[0], last = seen.samples[seen.samples.length - 1];
    const seconds = first && last ? (last.wall - first.wall) / 1000 : 0;
    const rate = (key) => seconds > 0 ? Math.max(0, last[key] - first[key]) / seconds : NaN;
    return { updates: rate("arrived"), up: rate("bytes_up"), down: rate("bytes_down") };
  }
  function drawCards() {
    const s = seen.snapshot, r = rates(), name = Object.keys(seen.metrics)[0];
    const last = name && valuesOf(name).at(-1), words = name ? seen.metrics[name].words : "metrics";
    const rejected = Object.values(s.rejected).reduce((a, b) => a + b, 0);
    const bytes = (x) => Number.isFinite(x) ? size(x) + "/s" : "–";
    const cards = [
      [last ? number(name, last[name]) : "–", last ? `${words}; ${number(name, bestOf(name))} at best` : words],
      [whole.format(s.version), "version of the model"],
      [whole.format(s.arrived), `updates; ${whole.format(s.aggregated)} used, ${whole.format(s.dropped)} dropped`],
      [sig(r.updates) + "/s", `updates now; ${s.running} in training`],
      ["↑ " + bytes(r.up), `from sites; ${size(s.bytes_up)} in all`],
      ["↓ " + bytes(r.down), `to sites; ${size(s.bytes_down)} in all`],
      [whole.format(s.lost), "tasks lost"],
      [whole.format(rejected), "rejected"],
    ];
    at("cards").replaceChildren(...cards.map(([value, label]) => {
      const card = make("div", "card");
      card.append(make("b", "", value), make("span", "", label));
      return card;
    }));
  }
  function samplesOf(site) {
    const range = site.allowed ? ` (${site.allowed.map((n) => whole.format(n)).join("–")})` : "";
    return whole.format(site.samples) + range;
  }
  function timesOf(site) {
    const t = site.times;
    if (!t) return "–";
    return [t.trained, t.received, t.sent, t.waited, t.lost].map((share) => Math.round(100 * share)).join("/");
  }
  function drawSites() {
    const s = seen.snapshot;
    at("sites").replaceChildren(...s.sites.map((site) => {
      const line = make("tr", site.state), state = make("td");
      state.append(make("i", "dot " + site.state), site.state);
      for (const t of site.transfers || []) {
        const left = typeof t.seconds_left === "number" ? `, ${span(Math.round(t.seconds_left))} left` : "";
        const again = t.connection > 1 ? `, connection ${t.connection}` : "";
        state.append(make("small", "transfer", `${t.direction === "up" ? "↑" : "↓"} ${size(t.done)} of ${size(t.size)}${again}${left}`));
        state.lastChild.title = t.what;
      }
      const name = make("td", "", site.name);
      name.title = site.name;
      const busy = site.task !== null && site.task !== undefined;
      const steps = !busy ? "–" : site.steps_done ? `${site.steps_done} of ${site.steps}` : whole.format(site.steps);
      line.append(name, state, ...[
        busy ? site.task : "–", steps, site.speed ? sig(site.speed) : "–",
        site.staleness >= 0 ? site.staleness : "–", whole.format(site.updates),
        s.arrived ? Math.round(100 * site.updates / s.arrived) + " %" : "–",
        typeof site.persistence === "number" ? site.persistence.toFixed(2) : "–",
        typeof site.size === "number" ? sig(site.size) + "×" : "–", samplesOf(site), timesOf(site),
        typeof site.last_seen === "number" ? span(Math.round(Math.max(0, s.now - site.last_seen))) + " ago" : "–",
      ].map((value) => make("td", "", String(value))));
      return line;
    }));
    const there = s.sites.filter((site) => !["away", "expected", "revoked"].includes(site.state)).length;
    const waits = typeof s.begins_with === "number" && s.stopped === null;
    const all = s.helpers && s.helpers.formed === false ? ", and for all helpers" : "";
    at("sites-count").textContent = waits ? `waiting for ${s.begins_with} sites, ${there} there${all}` : `${there} of ${s.sites.length} there`;
  }
  function drawRejected() {
    const reasons = Object.entries(seen.snapshot.rejected).sort((a, b) => b[1] - a[1]);
    if (!reasons.length) return empty(at("rejected"), "Nothing has been rejected.");
    const table = make("table"), body = make("tbody");
    for (const [reason, count] of reasons) {
      const line = make("tr");
      line.append(make("td", "", reason), make("td"), make("td", "", whole.format(count)));
      body.append(line);
    }
    table.append(body);
    at("rejected").replaceChildren(table);
  }
  function drawAlarms() {
    const s = seen.snapshot, counted = [
      ["updates refused by the guard", s.guarded], ["versions skipped", s.skipped],
      ["returns to an earlier version", s.rollbacks],
    ];
    const told = counted.filter(([, count]) => count).map(([what, count]) => `${what}: ${whole.format(count)}`);
    at("helpers").hidden = !s.helpers;
    if (s.helpers) at("helpers").textContent = s.helpers.text;
    const privacy = s.privacy, spent = at("privacy");
    spent.hidden = !privacy;
    if (privacy) {
      const limit = privacy.budget === undefined ? "" : ` of ${privacy.budget}`;
      spent.textContent = `ε = ${privacy.epsilon.toFixed(2)}${limit} (δ = ${privacy.delta}; ` +
        `the busiest client was in ${privacy.releases} releases)`;
    }
    const text = [...told, ...(s.warning ? [`the model: ${s.warning}`] : []), ...(s.mirror?.problem ? [`the mirror ${s.mirror.directory} is behind: ${s.mirror.problem}`] : []), ...(s.diverged ? [s.diverged] : [])].join("; "), line = at("alarms");
    if (line.textContent !== text) line.textContent = text;
    line.hidden = !text;
  }
  function age(s) {
    // A server of an earlier version does not say when its run began.
    const begun = typeof s.began === "number", text = span(Math.round(since(s.now)));
    if (s.stopped !== null) return `it took ${text}`;
    return begun ? `${text} since it began` : `${text} on its clock`;
  }
  function drawHead() {
    const s = seen.snapshot, label = s.label === s.algorithm ? s.label : `${s.label} (${s.algorithm})`;
    const title = s.title || label;
    at("title").textContent = title;
    document.title = `${title} · Offbeat`;
    at("facts").textContent = `${s.title ? `${label}, ` : ""}run ${s.run}, ${age(s)}`;
    state(s.stopped === null ? "running" : `ended: ${s.stopped}`, s.stopped === null ? "live" : "");
  }
  function state(text, kind) {
    const pill = at("state");
    if (pill.textContent !== text) pill.textContent = text;
    pill.className = "pill " + kind;
  }
  function drawAll() {
    drawHead(); drawAlarms(); drawCards(); offerMetrics(); drawMetrics(); drawTimeline(); drawSites(); drawRejected();
  }

  // ---- asking ----

  async function ask(path) {
    const answer = await fetch(HERE + path, { signal: AbortSignal.timeout(LATE) });
    if (!answer.ok) throw new Error((await answer.text()).trim() || String(answer.status));
    return answer.json();
  }
  async function more(path, next, rows) {
    for (let pages = 0; pages < 20; pages += 1) {
      const found = await ask(path + (next === null ? "" : `?since=${next}`));
      rows.push(...found.rows);
      for (const [name, metric] of Object.entries(found.metrics ?? {})) seen.metrics[name] ??= metric;
      if (found.next === next) break;
      next = found.next;
    }
    return next;
  }
  async function news() {
    const snapshot = await ask("api/snapshot");
    const other = seen.snapshot && seen.snapshot.run !== snapshot.run;
    if (other) Object.assign(seen, { evaluations: [], metrics: {}, nextMetric: null, rows: [], nextRow: null, samples: [] });
    seen.nextMetric = await more("api/metrics", seen.nextMetric, seen.evaluations);
    seen.nextRow = await more("api/timeline", seen.nextRow, seen.rows);
    if (seen.rows.length > ROWS) seen.rows = seen.rows.slice(-ROWS);
    const wall = performance.now();
    seen.samples.push({ wall, arrived: snapshot.arrived, bytes_up: snapshot.bytes_up, bytes_down: snapshot.bytes_down });
    seen.samples = seen.samples.filter((sample) => wall - sample.wall <= RATE_OVER);
    seen.snapshot = snapshot;
  }
  async function poll() {
    try {
      await news();
      drawAll();
    } catch (error) {
      state("no answer: " + error.message, "broken");
    }
    setTimeout(poll, document.hidden ? 5 * POLL : POLL);
  }

  for (const button of document.querySelectorAll(".switch button"))
    button.addEventListener("click", () => {
      const option = button.parentElement.dataset.option;
      chosen[option] = button.dataset.value;
      for (const other of button.parentElement.children)
        other.setAttribute("aria-pressed", String(other === button));
      if (seen.snapshot) drawAll();
    });
  addEventListener("resize", () => { if (seen.snapshot) drawAll(); });
  poll();
})();
