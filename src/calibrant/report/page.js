"use strict";
// Draws numbers that Python computed; nothing is measured here.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const percent = (share, digits = 1) => (share == null ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`);
  const views = {};
  const before = data.candidates[0];
  const methodInput = at("method");
  const binsInput = at("bins");
  const thresholdInput = at("threshold");

  const picked = () =>
    methodInput ? data.candidates.find((each) => each.name === methodInput.value) : before;

  async function draw(id, name, sets) {
    const place = at(id);
    if (!place) return;
    if (!views[id]) {
      const label = place.getAttribute("aria-label");
      const spec = { ...data.charts[name], datasets: { ...data.charts[name].datasets, ...sets } };
      // The policy of the page forbids eval; Vega's interpreter (ast) works without it.
      views[id] = (await vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true })).view;
      // The label of the container, which Vega replaces, describes the chart; the marks need no labels.
      place.setAttribute("aria-label", label);
      place.querySelector("svg").setAttribute("aria-hidden", "true");
      return;
    }
    for (const [set, rows] of Object.entries(sets)) views[id].data(set, rows);
    await views[id].resize().runAsync();
  }

  const binsOf = (each) => each.bins[binsInput.value];

  function binRows(binned) {
    const n = binned.n_bins;
    const total = binned.count.reduce((sum, count) => sum + count, 0);
    return binned.count.map((count, i) => ({
      low: i / n, high: (i + 1) / n, middle: (i + 0.5) / n, n: count, share: count / total,
      range: `${((100 * i) / n).toFixed(0)} to ${((100 * (i + 1)) / n).toFixed(0)} %`,
      accuracy: binned.accuracy[i], confidence: binned.confidence[i],
      band_low: binned.band_low[i], band_high: binned.band_high[i],
    }));
  }

  const counted = (n) => (n < 1000 ? `${Math.round(n)}` : n < 99950 ? `${(n / 1000).toFixed(n < 9950 ? 1 : 0)}k` : `${(n / 1e6).toFixed(1)}M`);

  // The counts above a diagram: in two rows if the bins are narrow, none if they are narrower still.
  function withCounts(id, rows) {
    const room = (at(id).clientWidth - 70) / rows.length;
    return rows.map((row, i) => ({ ...row, label: room < 11 ? "" : counted(row.n), row: room < 24 ? i % 2 : 0 }));
  }

  function parts(rows) {
    const full = rows.filter((row) => row.n > 0).map((row) => ({ ...row, room: 1.06 * row.share }));
    const correct = (row) => row.share * row.accuracy;
    return [
      ...full.map((row) => ({ ...row, outcome: "correct", bottom: 0, top: correct(row), count: Math.round(row.n * row.accuracy) })),
      ...full.map((row) => ({ ...row, outcome: "wrong", bottom: correct(row), top: row.share, count: Math.round(row.n * (1 - row.accuracy)) })),
    ];
  }

  const means = (each) => [
    { what: "accuracy", value: each.accuracy },
    { what: "mean confidence", value: each.mean_confidence },
  ];

  function groups(each) {
    const short = (value) => value.toFixed(value < 9.95 ? 1 : 0);
    return each.margins.map((group) => ({ ...group, range: `${short(group.low)}–${short(group.high)}` }));
  }

  function describe(id, text) {
    at(id)?.setAttribute("aria-label", text);
  }

  async function showBins(side, each) {
    const binned = binsOf(each);
    const rows = binRows(binned);
    at(`ece-${side}`).textContent = `ECE ${percent(binned.ece, 2)}`;
    const off = rows.filter((row) => row.n).map((row) => `${row.range}: accuracy ${percent(row.accuracy)}`);
    describe(`reliability-${side}`, `Reliability diagram, ${each.title}, ${binned.n_bins} bins, calibration error ${percent(binned.ece, 2)}. Accuracy by confidence: ${off.join("; ")}.`);
    describe(`histogram-${side}`, `Histogram of confidence, ${each.title}: mean confidence ${percent(each.mean_confidence)}, accuracy ${percent(each.accuracy)}.`);
    // Vega marks the rows that it gets and treats copies of them as the same rows, so make new ones.
    await draw(`reliability-${side}`, "reliability", { bins: withCounts(`reliability-${side}`, rows) });
    await draw(`histogram-${side}`, "histogram", { parts: parts(binRows(binned)), means: means(each) });
  }

  async function showPositive(side, each) {
    if (!each.positive) return;
    const id = `positive-${side}`;
    const rows = binRows(each.positive);
    const values = rows.filter((row) => row.n).map((row) => `${row.range}: frequency ${percent(row.accuracy)}`);
    describe(id, `Reliability of the positive class, ${each.title}. Frequency by probability: ${values.join("; ")}.`);
    await draw(id, "positive", { bins: withCounts(id, rows) });
  }

  async function showMargins(side, each) {
    if (!each.margins.length) return;
    const values = each.margins.map((group) => `${group.low.toFixed(1)} to ${group.high.toFixed(1)}: confidence ${percent(group.confidence)}, accuracy ${percent(group.accuracy)}`);
    describe(`margins-${side}`, `Confidence and accuracy by margin, ${each.title}. ${values.join("; ")}.`);
    await draw(`margins-${side}`, "margins", { groups: groups(each) });
  }

  function cells(tag, row, values) {
    for (const value of values) {
      const cell = document.createElement(tag);
      cell.textContent = value;
      row.append(cell);
    }
  }

  function showNumbers() {
    const shown = methodInput ? [before, picked()] : [before];
    const table = at("bin-table");
    table.tHead.replaceChildren();
    table.tBodies[0].replaceChildren();
    const titles = shown.flatMap((each) => ["samples", "confidence", "accuracy"].map((what) => `${each.title}: ${what}`));
    cells("th", table.tHead.insertRow(), ["confidence", ...titles]);
    const columns = shown.map((each) => binRows(binsOf(each)));
    columns[0].forEach((row, i) => {
      if (!columns.some((column) => column[i].n)) return;
      const line = table.tBodies[0].insertRow();
      cells("th", line, [row.range]);
      line.firstChild.scope = "row";
      cells("td", line, columns.flatMap((column) => [column[i].n.toLocaleString("en", { maximumFractionDigits: 1 }), percent(column[i].confidence), percent(column[i].accuracy)]));
    });
  }

  const nearest = (values, wanted) =>
    values.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? i : best), 0);

  function curveRows(each, role) {
    return each.risk.coverage.map((coverage, i) => ({ coverage, risk: each.risk.risk[i], role }));
  }

  function guaranteedRows(each) {
    const rows = each.risk.guaranteed.map((risk, i) => ({ coverage: each.risk.coverage[i], risk, role: "guaranteed" }));
    return rows.filter((row) => row.risk != null);
  }

  function bold(text) {
    const strong = document.createElement("b");
    strong.textContent = text;
    return strong;
  }

  async function showThreshold() {
    const { coverage, risk, threshold, guaranteed } = picked().risk;
    const i = Math.min(Number(thresholdInput.value), coverage.length - 1);
    const readout = at("readout");
    readout.replaceChildren(
      "Answer ", bold(percent(coverage[i])), " of samples at ", bold(percent(risk[i])),
      ` error: those with a confidence of at least ${percent(threshold[i], 2)}.`,
    );
    readout.dataset.coverage = coverage[i];
    readout.dataset.risk = risk[i];
    readout.dataset.threshold = threshold[i];
    readout.dataset.guaranteed = guaranteed[i] ?? "";
    if (guaranteed.length) {
      const promise = document.createElement("small");
      promise.textContent = guaranteed[i] == null
        ? "No error rate is guaranteed for new data."
        : `Guaranteed for new data like these: at most ${percent(guaranteed[i])} error, with 95 % probability.`;
      readout.append(promise);
    }
    if (methodInput) {
      const j = nearest(before.risk.coverage, coverage[i]);
      const small = document.createElement("small");
      small.textContent = `${before.title}: ${percent(before.risk.risk[j])} error at a coverage of ${percent(before.risk.coverage[j])}.`;
      readout.append(small);
    }
    thresholdInput.setAttribute("aria-valuetext", `${percent(coverage[i])} of samples at ${percent(risk[i])} error`);
    await draw("risk", "risk", { ...riskSets(), here: [{ coverage: coverage[i], risk: risk[i] }] });
  }

  function riskSets() {
    const curves = [...curveRows(picked(), "after"), ...guaranteedRows(picked())];
    return { curves: methodInput ? [...curveRows(before, "before"), ...curves] : curves };
  }

  function setCoverage(wanted) {
    const { coverage } = picked().risk;
    thresholdInput.max = coverage.length - 1;
    thresholdInput.value = nearest(coverage, wanted);
    return showThreshold();
  }

  function followPointer() {
    const place = at("risk");
    const move = (event) => {
      const svg = place.querySelector("svg");
      const x = event.clientX - svg.getBoundingClientRect().left - views.risk.origin()[0];
      setCoverage(views.risk.scale("x").invert(x));
    };
    place.addEventListener("pointerdown", (event) => {
      place.setPointerCapture(event.pointerId);
      move(event);
      event.preventDefault();
    });
    place.addEventListener("pointermove", (event) => {
      if (place.hasPointerCapture(event.pointerId)) move(event);
    });
  }

  async function showTemperatures() {
    const shown = data.temperatures;
    if (!shown) return;
    const top = 1.6 * Math.max(shown.single, ...shown.temperature);
    const cut = (value) => Math.min(value ?? top, top);
    const wanted = shown.wanted.flatMap((group, number) =>
      group.margins.map((margin, i) => ({ group: number, margin, lowest: cut(group.lowest[i]), highest: cut(group.highest[i]) })));
    const curve = shown.margins.map((margin, i) => ({ margin, temperature: shown.temperature[i] }));
    const ends = [0, 0.5, 1].map((share) => curve[Math.round(share * (curve.length - 1))]);
    describe("temperatures", `Temperature of SMART: ${ends.map((end) => `${end.temperature.toFixed(2)} at margin ${end.margin.toFixed(1)}`).join(", ")}; single temperature: ${shown.single.toFixed(2)}.`);
    await draw("temperatures", "temperature", { wanted, curve, single: [{ temperature: shown.single }] });
  }

  async function showGroups() {
    if (!data.groups.length) return;
    const titles = { before: before.title, after: data.candidates.find((each) => each.name === data.chosen)?.title };
    const side = (line, role) => ({ ...line[role], name: line.name, n: line.n, role, title: titles[role] });
    const gaps = data.groups.flatMap((line) => (line.after ? [side(line, "before"), side(line, "after")] : [side(line, "before")]));
    const said = (gap) => `${percent(gap.gap)} (${percent(gap.low)} to ${percent(gap.high)})`;
    const values = data.groups.map((line) => `${line.name}: ${said(line.before)}${line.after ? `, then ${said(line.after)}` : ""}`);
    describe("groups-chart", `Mean confidence minus accuracy. ${values.join("; ")}.`);
    data.charts.groups.height = 12 * gaps.length + 12 * data.groups.length;
    await draw("groups-chart", "groups", { gaps });
  }

  async function showOthers() {
    await showGroups();
    await showTemperatures();
    for (const [i, side] of ["before", "after"].entries()) {
      const each = data.shift?.[i];
      if (each) await draw(`shift-${side}`, "reliability", { bins: withCounts(`shift-${side}`, binRows(each.bins[2])) });
    }
    if (data.foreign) {
      const roc = data.foreign.scores.flatMap((each) => each.passed.map((passed, i) => ({ score: each.score, passed, kept: each.kept[i] })));
      await draw("detection", "detection", { roc });
    }
  }

  async function showBinned() {
    at("bins-shown").textContent = binsOf(before).n_bins;
    binsInput.setAttribute("aria-valuetext", `${binsOf(before).n_bins} bins`);
    showNumbers();
    await showBins("before", before);
    if (methodInput) await showBins("after", picked());
  }

  const tenths = (share) => (share == null ? "–" : (100 * share).toFixed(1));

  function showAnswers() {
    const rules = picked().answers;
    [...(at("answer-table")?.tBodies[0].rows ?? [])].forEach((row, i) => {
      const { threshold, answered, wrong, low, high } = rules[i];
      const shown = wrong == null ? "–" : `${tenths(wrong)} (${tenths(low)} to ${tenths(high)})`;
      [tenths(threshold), tenths(answered), shown].forEach((text, j) => (row.cells[4 + j].textContent = text));
    });
  }

  async function showPicked() {
    for (const place of document.querySelectorAll(".picked")) {
      place.textContent = picked().short;
      if (picked().short !== picked().title) place.title = picked().title;
      else place.removeAttribute("title");
    }
    await showBinned();
    if (methodInput) showAnswers();
    if (methodInput) await showPositive("after", picked());
    if (methodInput) await showMargins("after", picked());
    await setCoverage(Number(at("readout").dataset.coverage ?? 0.8));
  }

  function sortBy(table, heading) {
    const headings = [...table.tHead.rows[0].cells];
    const column = headings.indexOf(heading);
    const rising = heading.getAttribute("aria-sort") !== "ascending";
    for (const each of headings) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const difference = Number(a) - Number(b);
      const found = Number.isNaN(difference) ? a.localeCompare(b) : difference;
      return rising ? found : -found;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
  }

  for (const button of document.querySelectorAll(".sortable .sort")) {
    button.addEventListener("click", () => sortBy(button.closest("table"), button.closest("th")));
  }
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  methodInput?.addEventListener("change", showPicked);
  binsInput.addEventListener("input", showBinned);
  thresholdInput.addEventListener("input", showThreshold);

  (async () => {
    // A histogram beside its diagram is as high as this.
    if (!methodInput) data.charts.histogram.height = data.charts.reliability.height;
    await showPicked();
    await showPositive("before", before);
    await showMargins("before", before);
    await showOthers();
    followPointer();
    document.documentElement.dataset.ready = "yes";
  })();
})();
