"use strict";
// What the scripts of all pages build with: the data of the page, elements, shapes of a drawing, and charts by uPlot.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function node(name, attributes, text) {
  const made = document.createElement(name);
  for (const key in attributes || {}) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function tableRow(parent, cells) { // of the arguments of node
  const made = parent.appendChild(node("tr"));
  made.append(...cells.map((cell) => node(...cell)));
  return made;
}
function shape(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}
function short(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(Math.max(1, digits - 3));
  return String(Number(value.toPrecision(digits)));
}
function power(exponent) { // 10^-59.6 as people write it
  let whole = Math.floor(exponent), digits = Math.pow(10, exponent - whole);
  if (digits >= 9.95) { digits = 1; whole += 1; }
  return whole >= -3 ? short(Math.pow(10, exponent)) : digits.toFixed(1) + "e" + whole;
}

// -- charts -----------------------------------------------------------------------------------------
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]], BORDERS = ["solid", "dashed", "dotted", "double"];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]; // steps between ticks at whole numbers
const charts = new Map(); // figure: {spec, at: place of the cursor or null, place: puts it there, plot, watch}
const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Draw a chart into a figure and return what moves its cursor to a place of xs.
// spec: title, xs, lines [{label, values, colour, bars}], x and y {label, range, whole, log (numbers are log10), text, told}.
function chart(figure, spec, at = null) {
  const old = charts.get(figure);
  if (old) { old.watch.disconnect(); old.plot.destroy(); charts.delete(figure); }
  figure.replaceChildren(node("figcaption", {}, spec.title));
  figure.classList.toggle("quiet", spec.lines.length === 1 && at === null);
  const known = spec.lines.flatMap((line) => line.values).filter((v) => typeof v === "number");
  if (!known.length) {
    figure.appendChild(node("p", { class: "soft" }, "nothing to show"));
    return () => undefined;
  }
  const axis = (scale, about) => ({
    scale: scale, label: about.label, labelSize: 20, size: scale === "x" ? 30 : 56, stroke: tone("--soft"), font: "11px system-ui, sans-serif",
    labelFont: "11px system-ui, sans-serif", grid: { stroke: tone("--line"), width: 0.7 }, ticks: { stroke: tone("--line"), width: 0.7 },
    ...(about.whole || about.log ? { incrs: WHOLE } : {}), ...(about.splits ? { splits: about.splits } : {}),
    values: (u, ticks) => ticks.map((v) => (about.text ? about.text(v) : about.log ? "1e" + v : short(v))),
  });
  const told = (about) => (u, v) => (v === null || v === undefined ? "–" : about.told ? about.told(v) : about.log ? power(v) : short(v));
  const low = Math.min(...known), high = Math.max(...known), pad = (high - low || Math.abs(high) || 1) * 0.06;
  const one = { spec: spec, at: at };
  const place = one.place = (u) => u.setCursor(one.at === null ? { left: -10, top: -10 } : { left: u.valToPos(spec.xs[one.at], "x"), top: u.over.clientHeight / 2 });
  const first = spec.xs[0], width = spec.xs[spec.xs.length - 1] - first || 1;
  const ends = spec.x.range || [first, first + 1.01 * width]; // a dot on the very edge is not shown
  const plot = one.plot = new uPlot({
    width: Math.max(200, figure.clientWidth), height: 250, padding: [8, 14, 0, 0],
    scales: { x: { time: false, range: () => ends }, y: { range: () => spec.y.range || [low - pad, high + pad] } },
    axes: [axis("x", spec.x), axis("y", spec.y)],
    series: [{ label: spec.x.label, value: told(spec.x) }, ...spec.lines.map((line, i) => ({
      label: line.label, value: told(spec.y), stroke: tone(line.colour || "--c" + (i % 8)), width: line.bars ? 0 : 2, dash: DASHES[i % 4],
      points: { show: !line.bars && spec.xs.length < 40, size: 5 }, spanGaps: false,
      ...(line.bars ? { fill: tone(line.colour || "--c" + (i % 8)), paths: uPlot.paths.bars({ align: line.bars === "from" ? 1 : 0, size: [0.85] }), fillTo: () => (spec.y.range ? spec.y.range[0] : 0) } : {}),
    }))],
    legend: { markers: { width: 3, dash: (u, i) => BORDERS[(i - 1) % 4] } },
    cursor: {
      y: false, drag: { x: false, y: false }, points: { size: 9 },
      bind: { mouseleave: (u, target, handler) => (event) => { handler(event); place(u); return null; } },
    },
    hooks: { ready: [place], setSize: [place] },
  }, [spec.xs, ...spec.lines.map((line) => line.values)], figure);
  plot.over.parentElement.setAttribute("role", "img");
  plot.over.parentElement.setAttribute("aria-label", spec.title + " against " + spec.x.label);
  one.watch = new ResizeObserver(() => { if (figure.clientWidth && figure.clientWidth !== plot.width) plot.setSize({ width: figure.clientWidth, height: 250 }); });
  one.watch.observe(figure);
  charts.set(figure, one);
  return (index) => {
    const now = charts.get(figure); // drawn again since then, perhaps
    now.at = index;
    now.place(now.plot);
    figure.classList.remove("quiet");
  };
}
// Colours of a canvas do not follow the style sheet by themselves.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...charts].forEach(([figure, one]) => chart(figure, one.spec, one.at)));
