"use strict";
(function () { // after common.js
  const colour = (i) => "var(--c" + (i % 8) + ")";


  // -- plots of the trajectory ----------------------------------------------------------------------
  const stepPlace = (step) => Math.log10(Math.max(step, 0.5)); // step 0 stands a third of a decade left of 1
  const stepText = (place) => (place < -0.1 ? "0" : String(Math.round(Math.pow(10, place))));

  function plot(figure, run, spec) {
    const read = (value) => (value === null || (spec.log && value <= 0) ? null : spec.log ? Math.log10(value) : value);
    const xs = run.steps.map(stepPlace), last = xs[xs.length - 1];
    const decades = Array.from({ length: Math.floor(last) + 1 }, (_, k) => k).filter((k) => k >= xs[0]);
    return chart(figure, {
      title: spec.title + (spec.note ? spec.note(run) : ""), xs: xs,
      lines: spec.lines(run).map((line) => ({ label: line.label, values: line.values.map(read) })),
      x: { label: "step", splits: () => (xs[0] < 0 ? [xs[0], ...decades] : decades), text: stepText, told: stepText },
      y: { log: spec.log },
    });
  }

  const LOWEST = -5; // a margin at the start may be hundreds below 0 and would flatten the rest
  const solved = (run) => run.comparisons.filter((c) => c.misalignment.some((v) => v !== null));
  const SPECS = [
    { title: "1 − correlation with each solution", log: true, lines: (run) => solved(run).map((c) => ({ label: c.label, values: c.misalignment })) },
    { title: "margin reached, relative to the optimal one", log: false, lines: (run) => solved(run).map((c) => ({ label: c.label, values: c.margin.map((v) => (v === null ? null : Math.max(v, LOWEST))) })),
      note: (run) => { const least = Math.min(...solved(run).flatMap((c) => c.margin.filter((v) => v !== null))); return least < LOWEST ? " (what is below " + LOWEST + " is drawn there; least " + short(least) + ")" : ""; } },
    { title: "norm of W (Frobenius)", log: true, lines: (run) => [{ label: "norm of W", values: run.norm }] },
    { title: "log10 of the attention off the selected tokens", log: false, lines: (run) => [{ label: "attention off the selected tokens", values: run.rest }] },
  ];

  // -- attention maps -------------------------------------------------------------------------------
  const problem = data.problem;
  const chosen = [].concat(...problem.selection.map((s) => [].concat(s)));

  function buildMaps(run) {
    const rows = run.attention[0].length, columns = run.attention[0][0].length;
    const perTable = problem.K === null ? rows : problem.K;
    const dense = columns > 16, shown = run.columns;
    const cells = [];
    byId("maps").replaceChildren();
    for (let start = 0; start < rows; start += perTable) {
      const table = node("table", { class: dense ? "map dense" : "map" });
      table.appendChild(node("caption", {}, problem.K === null ? "rows: sequences, columns: tokens" : "sequence " + start / perTable + " (rows: queries, columns: tokens)"));
      const every = shown.every((token, t) => token === t) ? 8 : 4; // gaps in the numbers want more of them
      tableRow(table.appendChild(node("thead")), [["td"], ...shown.map((token, t) => ["th", { scope: "col" }, dense && t % every ? "" : String(token)])]);
      const body = table.appendChild(node("tbody"));
      for (let q = start; q < Math.min(start + perTable, rows); q++) {
        const line = tableRow(body, [["th", { scope: "row" }, String(q - (problem.K === null ? 0 : start))]]);
        cells[q] = [];
        for (let t = 0; t < columns; t++) {
          const open = !problem.allowed || problem.allowed[q][shown[t]];
          const one = line.appendChild(node("td", { class: (chosen[q] === shown[t] ? "chosen" : "") + (open ? "" : " masked") }));
          cells[q][t] = open ? one : null;
        }
      }
      byId("maps").appendChild(table);
    }
    return (s) => {
      run.attention[s].forEach((row, q) => row.forEach((value, t) => {
        const one = cells[q][t];
        if (!one) return;
        one.style.backgroundColor = "rgba(var(--heat), " + value / 1000 + ")";
        one.style.color = value > 800 ? "var(--paper)" : "inherit";
        one.title = "token " + shown[t] + ": attention " + (value / 10).toFixed(1) + " %";
        if (!dense) one.textContent = value >= 5 ? String(Math.round(value / 10)) : "";
      }));
    };
  }

  // -- numbers at the step --------------------------------------------------------------------------
  function readout(run, s) {
    const rows = [["loss", short(run.loss[s])], ["norm of W", short(run.norm[s])],
      ["attention off the selected tokens", run.rest[s] === null ? "–" : power(run.rest[s])],
      ["tokens as in the solutions", run.selection[s].filter((t, q) => t === chosen[q]).length + " of " + chosen.length]];
    for (const c of solved(run)) {
      const m = c.misalignment[s];
      rows.push(["degrees, " + c.label, m === null ? "–" : short(360 / Math.PI * Math.asin(Math.sqrt(Math.min(1, m / 2))))]);
    }
    byId("readout").replaceChildren(...rows.map((pair) => {
      const box = node("div");
      box.append(node("dt", {}, pair[0]), node("dd", {}, pair[1]));
      return box;
    }));
  }

  // -- graph of selections --------------------------------------------------------------------------
  function niceTicks(low, high, most) {
    const rough = (high - low) / most || 1;
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  }
  function star(x, y, r) {
    let path = "";
    for (let k = 0; k < 10; k++) {
      const size = k % 2 ? r * 0.45 : r, angle = (Math.PI * k) / 5 - Math.PI / 2;
      path += (k ? "L" : "M") + (x + size * Math.cos(angle)).toFixed(1) + " " + (y + size * Math.sin(angle)).toFixed(1);
    }
    return path + "Z";
  }
  const WORDS = { best: "globally optimal", local: "locally optimal", one: "leads to one local optimum", several: "leads to several ends", infeasible: "infeasible" };

  // The selections to draw: all, or the local optima and what is one swap away from them.
  function nearOptima(graph) {
    const isEnd = (n) => n[3] === "best" || n[3] === "local";
    const edges = graph.edges.filter(([, b]) => isEnd(graph.nodes[b]));
    const kept = new Set(edges.flat());
    graph.nodes.forEach((n, i) => { if (isEnd(n)) kept.add(i); });
    const order = [...kept].sort((a, b) => a - b), place = new Map(order.map((old, now) => [old, now]));
    return { ...graph, nodes: order.map((i) => graph.nodes[i]), edges: edges.map(([a, b]) => [place.get(a), place.get(b)]) };
  }

  function drawGraph(graph) {
    byId("graph").replaceChildren();
    const W = 900, H = 480, L = 60, R = 20, T = 16, B = 44;
    const margins = graph.nodes.map((n) => n[1]), scores = graph.nodes.map((n) => n[2]);
    const range = (values) => { const a = Math.min(...values), b = Math.max(...values), p = (b - a || 1) * 0.05; return [a - p, b + p]; };
    const [x0, x1] = range(margins), [y0, y1] = range(scores);
    const x = (v) => L + ((v - x0) / (x1 - x0)) * (W - L - R), y = (v) => H - B - ((v - y0) / (y1 - y0)) * (H - T - B);
    const svg = shape(byId("graph"), "svg", { viewBox: "0 0 " + W + " " + H, role: "img", "aria-label": "Selections by margin and mean score, with swaps as arrows; the table below lists the local optima" });
    const arrows = graph.edges.length <= 600;
    if (arrows) {
      const marker = shape(shape(svg, "defs", {}), "marker", { id: "tip", viewBox: "0 0 8 8", refX: 11, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
      shape(marker, "path", { d: "M0 0L8 4L0 8Z", fill: "var(--soft)", "fill-opacity": 0.6 });
    }
    for (const tick of niceTicks(x0, x1, 6)) {
      shape(svg, "line", { class: "grid", x1: x(tick), x2: x(tick), y1: T, y2: H - B });
      shape(svg, "text", { x: x(tick), y: H - B + 16, "text-anchor": "middle" }, short(tick));
    }
    for (const tick of niceTicks(y0, y1, 6)) {
      shape(svg, "line", { class: "grid", x1: L, x2: W - R, y1: y(tick), y2: y(tick) });
      shape(svg, "text", { x: L - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick));
    }
    shape(svg, "text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, "margin 1 / |W|  (0: infeasible)");
    shape(svg, "text", { x: 14, y: (T + H - B) / 2, "text-anchor": "middle", transform: "rotate(-90 14 " + (T + H - B) / 2 + ")" }, "mean score of the selected tokens");
    for (const [a, b] of graph.edges) {
      const from = graph.nodes[a], to = graph.nodes[b];
      shape(svg, "line", { class: arrows ? "edge" : "edge faint", x1: x(from[1]), y1: y(from[2]), x2: x(to[1]), y2: y(to[2]), ...(arrows ? { "marker-end": "url(#tip)" } : {}) });
    }
    const order = { infeasible: 0, several: 1, one: 2, local: 3, best: 4 };
    const small = graph.nodes.length > 400 ? 3 : 4.5;
    const places = new Map();
    for (const [tokens, margin, score, kind, paint] of [...graph.nodes].sort((a, b) => order[a[3]] - order[b[3]])) {
      const px = x(margin), py = y(score), style = { class: "node-" + kind };
      if (paint !== null) style.fill = colour(paint);
      let made;
      if (kind === "best") made = shape(svg, "path", { ...style, d: star(px, py, 13) });
      else if (kind === "local") made = shape(svg, "rect", { ...style, x: px - 6, y: py - 6, width: 12, height: 12 });
      else if (kind === "infeasible") made = shape(svg, "path", { ...style, d: "M" + (px - 3) + " " + (py - 3) + "L" + (px + 3) + " " + (py + 3) + "M" + (px - 3) + " " + (py + 3) + "L" + (px + 3) + " " + (py - 3) });
      else made = shape(svg, "circle", { ...style, cx: px, cy: py, r: small });
      shape(made, "title", {}, tokens + ": " + WORDS[kind] + ", margin " + short(margin) + ", score " + short(score));
      places.set(tokens, [px, py]);
    }
    const ring = shape(svg, "circle", { class: "ring", r: 12, visibility: "hidden" });
    return (run, s) => {
      const tokens = run.selection[s].join("-"), place = places.get(tokens);
      ring.setAttribute("visibility", place ? "visible" : "hidden");
      if (!place) return;
      ring.setAttribute("cx", place[0]);
      ring.setAttribute("cy", place[1]);
      byId("graph-here").textContent = "Ring: the tokens of run " + run.parameterization + " at step " + run.steps[s] + ", " + tokens + ".";
    };
  }

  // -- wiring ---------------------------------------------------------------------------------------
  const MANY = 120;
  let mark = () => undefined, again = () => undefined;
  if (data.graph.nodes && data.graph.nodes.length > MANY) {
    const near = nearOptima(data.graph), box = node("input", { type: "checkbox", id: "graph-all" });
    const label = node("label", { for: "graph-all" });
    label.append(box, document.createTextNode(" all " + data.graph.nodes.length + " selections (else the " + near.nodes.length + " local optima and what is one swap away from them)"));
    byId("graph-choice").appendChild(label);
    box.addEventListener("change", () => { mark = drawGraph(box.checked ? data.graph : near); again(); });
    mark = drawGraph(near);
  } else if (data.graph.nodes) mark = drawGraph(data.graph);
  data.spectra.forEach((found, i) => {
    const top = found.values[0] || 1, relative = found.values.map((v) => Math.max(-10, Math.log10(Math.max(v / top, 1e-30))));
    chart(byId("spectrum-" + i), {
      title: "Singular values of the " + found.name + " solution, relative to the largest",
      xs: relative.map((_, k) => k + 1), lines: [{ label: "relative value", values: relative, bars: "around" }],
      x: { label: "singular value number", whole: true, range: [0.5, relative.length + 0.5] }, y: { log: true, range: [-10, 0.2] },
    });
  });
  if (!data.runs.length) return;
  const scrubber = byId("scrubber"), label = byId("step"), play = byId("play");
  let run = data.runs[0], movers = [], timer = null;

  again = () => mark(run, Number(scrubber.value));
  function show(s) {
    movers.forEach((move) => move(s));
    readout(run, s);
    mark(run, s);
    label.textContent = "step " + run.steps[s];
    scrubber.setAttribute("aria-valuetext", "step " + run.steps[s]);
  }
  function choose(index) {
    const share = scrubber.max > 0 ? scrubber.value / scrubber.max : 1;
    run = data.runs[index];
    scrubber.max = run.steps.length - 1;
    scrubber.value = Math.round(share * scrubber.max);
    movers = SPECS.map((spec, i) => plot(byId("plot-" + i), run, spec));
    movers.push(buildMaps(run));
    show(Number(scrubber.value));
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  scrubber.addEventListener("input", () => { stop(); show(Number(scrubber.value)); });
  document.querySelectorAll("input[name=run]").forEach((radio) => radio.addEventListener("change", () => choose(Number(radio.value))));
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (Number(scrubber.value) >= Number(scrubber.max)) scrubber.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (Number(scrubber.value) >= Number(scrubber.max)) { stop(); return; }
      scrubber.value = Number(scrubber.value) + 1;
      show(Number(scrubber.value));
    }, 120);
  });
  scrubber.value = scrubber.max;
  choose(0);
})();
