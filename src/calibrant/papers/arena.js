"use strict";
// Ranks the tasks that the reader picks, as calibrant.papers.leaderboard ranks all of them.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const place = Object.fromEntries(data.columns.map((name, i) => [name, i]));
  const names = ["measure", "kind", "classes", "samples", "version"];
  const inputs = Object.fromEntries(names.map((name) => [name, at(name)]));
  // Groups of numbers of classes or labels: the first and the last one of each.
  const groups = [[2, 2], [3, 10], [11, 100], [101, Infinity]];
  const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // ---- which tasks count

  const spoken = ([low, high]) => (low === high ? `${low}` : high === Infinity ? `${low} or more` : `${low} to ${high}`);
  const inGroup = (task, [low, high]) => task.classes >= low && task.classes <= high;

  function offer(name, options) {
    const select = inputs[name];
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    if (options.some(([value]) => value === before)) select.value = before;
    select.disabled = options.length < 2;
  }

  function offerAll() {
    const used = (name) => new Set(data.tasks.map((task) => task[name]));
    offer("version", data.versions.map((version) => [version, version || "unknown"]));
    offer("kind", Object.entries(data.kinds).filter(([kind]) => used("kind").has(kind)));
    const tasks = data.tasks.filter((task) => task.version === inputs.version.value && task.kind === inputs.kind.value);
    offer("measure", data.measures[inputs.kind.value].map((name) => [name, data.titles[name]]));
    const sizes = [...new Set(tasks.map((task) => task.samples))].sort((a, b) => a - b);
    const found = groups.filter((group) => tasks.some((task) => inGroup(task, group)));
    const withAll = (options) => (options.length > 1 ? [["all", "all"], ...options] : options);
    offer("samples", withAll(sizes.map((size) => [`${size}`, size.toLocaleString("en")])));
    offer("classes", withAll(found.map((group) => [`${groups.indexOf(group)}`, spoken(group)])));
  }

  function picked() {
    const { kind, classes, samples, version } = Object.fromEntries(names.map((name) => [name, inputs[name].value]));
    return data.tasks.filter((task) =>
      task.kind === kind && task.version === version &&
      (classes === "all" || inGroup(task, groups[classes])) &&
      (samples === "all" || task.samples === Number(samples)));
  }

  // ---- ranks

  // The mean over files of the means within files, for each method.
  function byFile(tasks, rows) {
    const files = new Map();
    tasks.forEach((task, i) => files.set(task.file, [...(files.get(task.file) ?? []), rows[i]]));
    const means = [...files.values()].map((own) => own[0].map((_, j) => mean(own.map((row) => row[j]))));
    return means[0].map((_, j) => mean(means.map((row) => row[j])));
  }

  const rank = (values) => values.map((value) => {
    const below = values.filter((other) => other < value).length;
    return below + (values.filter((other) => other === value).length + 1) / 2;
  });

  // The methods that took part in every task, with what is shown of each.
  function board(tasks) {
    const methods = data.methods.map((_, i) => i).filter((i) => tasks.every((task) => task.numbers[i]));
    const scores = (name) => tasks.map((task) => methods.map((i) => task.numbers[i][place[name]]));
    const measures = data.measures[inputs.kind.value];
    const ranks = Object.fromEntries(measures.map((name) => [name, byFile(tasks, scores(name).map(rank))]));
    const reference = methods.indexOf(data.methods.indexOf(data.reference));
    const ratios = Object.fromEntries(["nll", "brier"].map((name) => {
      const logs = scores(name).map((row) => row.map((value) => Math.log(Math.max(value, 1e-10))));
      return [name, byFile(tasks, logs.map((row) => row.map((value) => value - row[reference]))).map(Math.exp)];
    }));
    const seconds = scores("fit_seconds");
    const lines = methods.map((i, j) => ({
      name: data.methods[i],
      ranks: Object.fromEntries(measures.map((name) => [name, ranks[name][j]])),
      ratios: { nll: ratios.nll[j], brier: ratios.brier[j] },
      seconds: mean(seconds.map((row) => row[j])),
    }));
    const nFiles = new Set(tasks.map((task) => task.file)).size;
    const partial = data.methods.filter((_, i) => !methods.includes(i) && tasks.some((task) => task.numbers[i]));
    return { lines, partial, nFiles, difference: data.differences[methods.length] / Math.sqrt(nFiles) };
  }

  // In how many tasks the default is better or worse than each method beyond chance.
  function duels(tasks, measure) {
    const lead = place[data.duels[measure]];
    return data.methods.flatMap((name, i) => {
      const leads = tasks.map((task) => task.numbers[i]?.[lead]).filter((value) => value != null);
      if (name === data.default || !leads.length) return [];
      const n = leads.length;
      return [{ name, n, ahead: leads.filter((value) => value > 2).length, behind: leads.filter((value) => value < -2).length }];
    }).sort((a, b) => (a.ahead - a.behind) / a.n - (b.ahead - b.behind) / b.n);
  }

  // ---- drawing

  function node(name, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  }

  const titled = (made, title) => {
    made.append(node("title", {}, title));
    return made;
  };

  const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`);

  function drawing(id, height, label) {
    const width = at(id).clientWidth;
    const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    svg.style.display = "block";
    at(id).replaceChildren(svg);
    return { svg, width, left: Math.min(220, 0.44 * width) };
  }

  function nameAt(name, left, y) {
    const look = name === data.default ? "own" : "name";
    const text = node("text", { x: left - 8, y: y + 4, "text-anchor": "end", class: look }, cut(name, Math.floor((left - 8) / 7.6)));
    return titled(text, name);
  }

  const step = (span) => [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200].find((size) => span / size <= 7) ?? 500;

  function ticks(low, high) {
    const size = step(high - low);
    const first = Math.ceil(low / size);
    return Array.from({ length: Math.floor(high / size) - first + 1 }, (_, i) => Number(((first + i) * size).toFixed(6)));
  }

  const ROW = 21;
  const TOP = 24;

  function drawRanks({ lines, difference }, measure) {
    const rows = lines.map(({ name, ranks }) => ({ name, rank: ranks[measure] }));
    const best = rows[0].rank;
    const label = `Mean ranks by ${data.titles[measure]}: ${rows.map((row) => `${row.name} ${row.rank.toFixed(2)}`).join("; ")}.`;
    const { svg, width, left } = drawing("rank-chart", TOP + ROW * rows.length + 6, label);
    const low = best - difference / 2, high = rows.at(-1).rank + difference / 2;
    const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - 8);
    const bottom = TOP + ROW * rows.length;
    svg.append(node("rect", { x: x(best - difference / 2), y: TOP, width: x(best + difference / 2) - x(best - difference / 2), height: bottom - TOP, fill: "var(--near)" }));
    for (const tick of ticks(Math.max(low, 0), high)) {
      svg.append(node("line", { x1: x(tick), x2: x(tick), y1: TOP, y2: bottom, stroke: "var(--line)" }));
      svg.append(node("text", { x: x(tick), y: TOP - 8, "text-anchor": "middle" }, `${tick}`));
    }
    rows.forEach(({ name, rank }, i) => {
      const y = TOP + ROW * (i + 0.5);
      const near = rank - best <= difference;
      const line = node("g", { class: "row" });
      line.append(nameAt(name, left, y));
      line.append(node("line", { x1: x(rank - difference / 2), x2: x(rank + difference / 2), y1: y, y2: y, stroke: "var(--soft)", "stroke-width": 1.5 }));
      line.append(node("circle", { cx: x(rank), cy: y, r: 5, fill: near ? "var(--blue)" : "var(--card)", stroke: "var(--blue)", "stroke-width": 1.5 }));
      svg.append(titled(line, `${name}: mean rank ${rank.toFixed(2)}`));
    });
  }

  function drawDuels(rows, measure) {
    const share = (count, n) => `${Math.round((100 * count) / n)}`;
    const label = rows.map((row) => `${row.name}: better in ${row.ahead}, worse in ${row.behind} of ${row.n}`).join("; ");
    const { svg, width, left } = drawing("duel-chart", ROW * Math.max(rows.length, 1) + 6, `Duels by ${data.titles[measure]}. ${label}.`);
    const pattern = node("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(node("rect", { width: 3, height: 6, fill: "var(--vermilion)" }));
    svg.append(pattern);
    const right = width - 76;
    rows.forEach(({ name, n, ahead, behind }, i) => {
      const y = ROW * (i + 0.5);
      const long = (count) => ((right - left) * count) / n;
      const bar = (from, to, fill) => node("rect", { x: from, y: y - 6, width: Math.max(0, to - from), height: 12, fill });
      const line = node("g", { class: "row" });
      line.append(nameAt(name, left, y), bar(left, right, "var(--line)"));
      line.append(bar(left, left + long(ahead), "var(--blue)"), bar(right - long(behind), right, "url(#stripes)"));
      line.append(node("text", { x: width, y: y + 4, "text-anchor": "end" }, `${share(ahead, n)} : ${share(behind, n)} %`));
      svg.append(titled(line, `${name}: ${data.default} is better in ${ahead} and worse in ${behind} of ${plural(n, "task")}`));
    });
    if (!rows.length) svg.append(node("text", { x: 0, y: 15 }, `${data.default} took part in none of these tasks.`));
  }

  function drawCosts({ lines }, measure) {
    const height = 340, bottom = height - 36, left = 40;
    const points = lines.map(({ name, ranks, seconds }) => ({ name, rank: ranks[measure], seconds: Math.max(seconds, 1e-5) }));
    const label = `Seconds of a fit and mean rank by ${data.titles[measure]}: ${points.map((each) => `${each.name} ${each.seconds.toPrecision(2)} s, ${each.rank.toFixed(1)}`).join("; ")}.`;
    const { svg, width } = drawing("cost-chart", height, label);
    const logs = points.map((each) => Math.log10(each.seconds));
    const low = Math.floor(Math.min(...logs)), high = Math.max(Math.ceil(Math.max(...logs)), low + 1);
    const ranks = points.map((each) => each.rank);
    const worst = Math.max(...ranks), best = Math.min(...ranks);
    const x = (seconds) => left + ((Math.log10(seconds) - low) / (high - low)) * (width - left - 12);
    const y = (rank) => 16 + ((rank - best) / (worst - best || 1)) * (bottom - 32);
    for (let power = low; power <= high; power += 1) {
      const place = x(10 ** power);
      svg.append(node("line", { x1: place, x2: place, y1: 4, y2: bottom, stroke: "var(--line)" }));
      svg.append(node("text", { x: place, y: bottom + 16, "text-anchor": power === high ? "end" : "middle" }, power < -3 || power > 4 ? `1e${power}` : `${10 ** power}`));
    }
    svg.append(node("text", { x: width - 12, y: height - 4, "text-anchor": "end" }, "CPU seconds of a fit"));
    for (const tick of ticks(best, worst)) {
      svg.append(node("line", { x1: left, x2: width - 12, y1: y(tick), y2: y(tick), stroke: "var(--line)" }));
      svg.append(node("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, `${tick}`));
    }
    const unbeaten = (each) => !points.some((other) => other.seconds <= each.seconds && other.rank < each.rank);
    const texts = [];
    const isFirst = (each) => each.name === data.default;
    for (const each of [...points].sort((a, b) => isFirst(b) - isFirst(a) || a.rank - b.rank)) {
      const own = isFirst(each), named = own || unbeaten(each);
      const middle = x(each.seconds), at = y(each.rank);
      const dot = node("circle", { class: "point", cx: middle, cy: at, r: own ? 7 : 5, fill: named ? "var(--blue)" : "var(--card)", stroke: "var(--blue)", "stroke-width": 1.5 });
      svg.append(titled(dot, `${each.name}: ${each.seconds.toPrecision(2)} s, mean rank ${each.rank.toFixed(2)}`));
      if (!named) continue;
      const text = cut(each.name, Math.floor((width - left) / 16)), long = 7 * text.length + 12;
      const isFree = (from) => from >= left && from + long <= width &&
        !texts.some((other) => Math.abs(other.at - at) < 13 && other.from < from + long && from < other.from + other.long);
      // A name for which there is room on neither side stands in the title of its dot only.
      const from = [middle, middle - long].find(isFree);
      if (from === undefined) continue;
      texts.push({ at, from, long });
      const isLeft = from < middle;
      svg.append(node("text", { x: middle + (isLeft ? -10 : 10), y: at + 4, "text-anchor": isLeft ? "end" : "start", class: own ? "own" : "name" }, text));
    }
  }

  function fillTable({ lines, difference, partial }) {
    const measures = data.measures[inputs.kind.value];
    const cell = (tag, text, attributes = {}) => {
      const made = document.createElement(tag);
      made.textContent = text;
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const row = (cells, name) => {
      const made = document.createElement("tr");
      if (name) made.dataset.name = name;
      made.append(...cells);
      return made;
    };
    const heads = ["method", ...measures.map((name) => `${data.titles[name]} rank`), ...["nll", "brier"].map((name) => `${data.titles[name]} ratio`), "CPU s"];
    at("board").tHead.replaceChildren(row(heads.map((text) => cell("th", text, { scope: "col" }))));
    const best = Object.fromEntries(measures.map((name) => [name, Math.min(...lines.map((line) => line.ranks[name]))]));
    const look = (value, name) => (value === best[name] ? { class: "best" } : value - best[name] <= difference ? { class: "near" } : {});
    at("board").tBodies[0].replaceChildren(...lines.map((line) => row([
      cell("th", line.name, { scope: "row" }),
      ...measures.map((name) => cell("td", line.ranks[name].toFixed(2), look(line.ranks[name], name))),
      ...["nll", "brier"].map((name) => cell("td", line.ratios[name].toFixed(3))),
      cell("td", line.seconds.toPrecision(2)),
    ], line.name)));
    at("partial").textContent = partial.length ? `Not ranked, because they took part in some of these tasks only: ${partial.join(", ")}.` : "";
  }

  function show() {
    offerAll();
    const tasks = picked();
    const measure = inputs.measure.value;
    const sections = ["ranks", "duels", "costs", "numbers"].map((id) => at(id).parentElement);
    for (const section of sections) section.hidden = !tasks.length;
    if (!tasks.length) {
      at("answer").textContent = "No task has this number of classes and of fitting samples.";
      return;
    }
    const found = board(tasks);
    found.lines.sort((a, b) => a.ranks[measure] - b.ranks[measure] || (a.name < b.name ? -1 : 1));
    const [first, second] = found.lines;
    const lead = second.ranks[measure] - first.ranks[measure];
    at("answer").textContent = `${first.name}, by mean rank in ${data.titles[measure]}: ${first.ranks[measure].toFixed(2)} of ${found.lines.length}; ` +
      `next is ${second.name} (${second.ranks[measure].toFixed(2)}). The lead ${lead > found.difference ? "is significant" : "may be chance"}: ` +
      `the critical difference is ${found.difference.toFixed(2)}, for ${plural(tasks.length, "task")} of ${plural(found.nFiles, "file")}.`;
    const duel = measure in data.duels ? measure : "smece";
    at("duel-measure").textContent = duel === measure ? "" : `Standard errors of ${data.titles[measure]} are not known, so these are duels by ${data.titles[duel]}.`;
    drawRanks(found, measure);
    drawDuels(duels(tasks, duel), duel);
    drawCosts(found, measure);
    fillTable(found);
  }

  for (const name of names) inputs[name].addEventListener("change", show);
  let width = 0;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    show();
  }).observe(document.body);
  show();
  document.documentElement.dataset.ready = "yes";
})();
