"use strict";
(function () { // after common.js of the reports
  const heads = data.records, measures = data.measures;
  const numeric = Object.keys(measures).filter((name) => heads.some((h) => typeof h[name] === "number"));
  let chosen = 0, sentence = 0, query = null, sorted = { name: null, down: true };

  const short3 = (value) => short(value, 3);
  const label = (name) => (measures[name] ? measures[name].label : name);
  const heat = (share) => "rgba(var(--heat)," + (0.04 + 0.9 * Math.max(0, Math.min(1, share))).toFixed(3) + ")";
  function options(select, groups) {
    for (const [title, names] of groups) {
      if (!names.length) continue;
      const group = select.appendChild(node("optgroup", { label: title }));
      for (const [value, text] of names) group.appendChild(node("option", { value: value }, text));
    }
  }
  const byTheory = (names) => Object.entries(data.theories).map(([key, title]) => [title, names.filter((n) => measures[n].theory === key).map((n) => [n, measures[n].label])]);

  // -- the grid -------------------------------------------------------------------------------------
  const layers = [...new Set(heads.map((h) => h.layer))];
  const width = Math.max(...heads.map((h) => h.head)) + 1;
  const cells = new Map();
  function buildGrid() {
    const grid = byId("grid");
    grid.setAttribute("role", "grid");
    tableRow(grid.appendChild(node("thead")), ["layer", ...Array(width).keys()].map((name) => ["th", { scope: "col" }, String(name)]));
    const body = grid.appendChild(node("tbody"));
    for (const layer of layers) {
      const row = tableRow(body, [["th", { scope: "row" }, String(layer)]]);
      for (let h = 0; h < width; h++) {
        const index = heads.findIndex((r) => r.layer === layer && r.head === h);
        const cell = row.appendChild(node("td", index < 0 ? {} : { tabindex: "-1", role: "gridcell" }));
        if (index < 0) continue;
        cells.set(index, cell);
        cell.addEventListener("click", () => choose(index, true));
        cell.addEventListener("keydown", (event) => moveFrom(index, event));
      }
    }
  }
  function moveFrom(index, event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); byId("one").scrollIntoView(); return; }
    if (!step) return;
    event.preventDefault();
    const place = layers.indexOf(heads[index].layer) + step[0], h = heads[index].head + step[1];
    const next = heads.findIndex((r) => r.layer === layers[place] && r.head === h);
    if (next >= 0) { choose(next, false); cells.get(next).focus(); }
  }
  function paintGrid() {
    const name = byId("measure").value, suffix = byId("against").value;
    const read = (h) => (typeof h[name] !== "number" ? null : !suffix ? h[name] : typeof h[name + suffix] === "number" ? h[name] - h[name + suffix] : null);
    const values = heads.map(read), known = values.filter((v) => v !== null);
    let low = Math.min(...known), high = Math.max(...known);
    if (!suffix && measures[name].share) { low = Math.min(0, low); high = Math.max(1, high); }
    cells.forEach((cell, index) => {
      const value = values[index], h = heads[index];
      cell.classList.toggle("none", value === null);
      cell.style.background = value === null ? "" : heat(high > low ? (value - low) / (high - low) : 0.5);
      cell.setAttribute("title", "layer " + h.layer + ", head " + h.head + ": " + short3(value));
      cell.setAttribute("aria-label", cell.getAttribute("title"));
    });
    const scale = byId("scale");
    scale.replaceChildren(document.createTextNode(known.length ? short3(low) : "not measured against this"));
    if (known.length) {
      scale.appendChild(node("i", { style: "background:linear-gradient(90deg," + heat(0) + "," + heat(1) + ")" }));
      scale.appendChild(document.createTextNode(short3(high)));
    }
    byId("sentence").textContent = measures[name].sentence + (suffix ? " Shown: the difference to " + (suffix === "_random" ? "a random W of the same spectrum." : "the same head on shuffled tokens.") : "");
  }

  // -- small plots ----------------------------------------------------------------------------------
  function plots(detail) {
    const { edges, counts } = detail.histogram || { edges: [], counts: [] };
    chart(byId("margins"), {
      title: "Lead of the selected token over |W|_F: number of queries", xs: edges.slice(0, -1), lines: [{ label: "queries", values: counts, bars: "from" }],
      x: { label: "margin", range: edges.length ? [edges[0], edges[edges.length - 1]] : null }, y: { whole: true, range: [0, Math.max(1, ...counts) * 1.05] },
    });
    const values = detail.singular_values || [];
    chart(byId("spectrum"), {
      title: "Singular values of W", xs: values.map((_, i) => i + 1), lines: [{ label: "value", values: values, colour: "--c2" }],
      x: { label: "number", whole: true }, y: { range: [0, Math.max(0, ...values) * 1.05 || 1] },
    });
    const rho = detail.rho || [];
    chart(byId("rho"), {
      title: "rho(θ): probability that a token passes a gradient", xs: rho.map((_, i) => (i + 1) / rho.length),
      lines: [{ label: "rho", values: rho, colour: "--c3" }], x: { label: "θ, place in the sequence" }, y: { range: [0, Math.max(0, ...rho) * 1.05 || 1] },
    });
    const grown = (detail.curve || []).filter((p) => typeof p.correlation_soft_frobenius === "number");
    const known = (value) => (typeof value === "number" ? value : null);
    chart(byId("curve"), {
      title: "With more sequences: the soft SVM", xs: grown.map((p) => p.sequences),
      lines: [{ label: "correlation", values: grown.map((p) => p.correlation_soft_frobenius) }, { label: "held-out agreement", values: grown.map((p) => known(p.agreement_soft_frobenius)) }],
      x: { label: "sequences", whole: true }, y: {},
    });
  }

  // -- one head -------------------------------------------------------------------------------------
  function decoded(map) {
    const raw = atob(map.bytes), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }
  function attention() {
    const shown = data.sentences[sentence];
    const words = byId("words");
    words.replaceChildren();
    if (!shown) { byId("query-note").textContent = "No sequence is shown."; return; }
    const map = shown.attention[chosen], weights = decoded(map), [rows, columns] = map.shape;
    if (query === null || query >= rows) query = Math.min(rows - 1, Math.floor(rows / 2));
    const row = weights.subarray(query * columns, (query + 1) * columns);
    const best = row.indexOf(Math.max(...row));
    const support = new Set((data.details[chosen].support || []).filter((s) => s[0] === shown.index && s[1] === query).map((s) => s[2]));
    const own = heads[chosen].attends === "self" && shown.tokens.length === columns;
    byId("query-note").textContent = "Choose a token as the query. Colours show its attention; bold: the token that it selects" + (support.size ? "; double underline: support tokens (closest competitors of the SVM)." : ".");
    for (let t = 0; t < columns; t++) {
      const text = own ? shown.tokens[t] : String(t);
      const word = words.appendChild(node("button", { type: "button", role: "option", "aria-selected": String(own && t === query), title: (row[t] / 255).toFixed(2) }, text));
      word.style.background = heat(row[t] / 255);
      if (support.has(t)) word.classList.add("support");
      if (t === best) word.classList.add("chosen");
      word.addEventListener("click", () => { query = Math.min(t, rows - 1); attention(); });
      word.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        query = Math.max(0, Math.min(rows - 1, t + step));
        attention();
        byId("words").children[query].focus();
      });
    }
    const canvas = byId("matrix"), size = Math.max(4, Math.min(14, Math.floor(420 / columns)));
    canvas.width = columns * size; canvas.height = rows * size;
    const ink = canvas.getContext("2d"), heatTone = tone("--heat");
    ink.clearRect(0, 0, canvas.width, canvas.height);
    for (let q = 0; q < rows; q++) for (let t = 0; t < columns; t++) {
      ink.fillStyle = "rgba(" + heatTone + "," + (0.03 + 0.97 * weights[q * columns + t] / 255) + ")";
      ink.fillRect(t * size, q * size, size, size);
    }
    ink.strokeStyle = tone("--c1");
    ink.lineWidth = 1.5;
    ink.strokeRect(0.5, query * size + 0.5, columns * size - 1, size - 1);
  }
  function numbers(head) {
    const box = byId("numbers");
    box.replaceChildren();
    for (const [title, names] of byTheory(numeric)) {
      const known = names.filter(([name]) => typeof head[name] === "number");
      if (!known.length) continue;
      const scroll = box.appendChild(node("div", { class: "scroll" })), table = scroll.appendChild(node("table"));
      table.appendChild(node("caption", {}, title));
      const columns = ["value", "95 % over sequences", "random W", "shuffled"];
      tableRow(table.appendChild(node("thead")), ["", ...columns, "what it means"].map((text) => ["th", { scope: "col" }, text]));
      const body = table.appendChild(node("tbody"));
      for (const [name, text] of known) {
        const low = head[name + "_low"], range = typeof low === "number" ? short3(low) + " to " + short3(head[name + "_high"]) : "–";
        const numbers = [short3(head[name]), range, short3(head[name + "_random"]), short3(head[name + "_shuffled"])];
        tableRow(body, [["th", { scope: "row" }, text], ...numbers.map((number, i) => ["td", { class: "number", "data-label": columns[i] }, number]), ["td", { class: "meaning" }, measures[name].sentence]]);
      }
    }
  }
  const SITES = {
    early: "The gradient signal peaks early in the sequence.", middle: "The gradient signal peaks in the middle of the sequence.",
    late: "The gradient signal peaks late in the sequence.", split: "The gradient signal is split between both ends of the sequence.",
    uniform: "The gradient signal is uniform over the sequence.", vanishing: "The gradient signal vanishes.",
  };
  function summary(head) {
    const parts = ["Type: " + head.kind + "."];
    if (SITES[head.site]) parts.push(SITES[head.site]);
    if (head.space === "head") parts.push("No single W exists (keys and queries are rotated or normalized), so the head is measured in head space, with W = I.");
    if (head.redundant_with) parts.push("Its attention is most like that of head " + head.redundant_with + " (affinity " + short3(head.redundancy) + ").");
    if (typeof head.importance === "number") parts.push("Removing it changes the output by " + short3(100 * head.importance) + " %.");
    const gap = head.gap_soft_frobenius;
    if (typeof gap === "number") parts.push("SVM: " + (head.status_frobenius || head.status_soft_frobenius) + ", relative gap " + short3(gap) + " (soft), " + short3(head.gap_frobenius) + " (hard).");
    if (typeof head.soft_ratio_nuclear_least === "number") parts.push("Soft nuclear margin: between " + short3(head.soft_ratio_nuclear_least) + " and " + short3(head.soft_ratio_nuclear) + " of the head's own.");
    return parts.join(" ");
  }
  function choose(index, scroll) {
    if (cells.get(chosen)) { cells.get(chosen).classList.remove("chosen"); cells.get(chosen).setAttribute("tabindex", "-1"); }
    chosen = index;
    cells.get(index).classList.add("chosen");
    cells.get(index).setAttribute("tabindex", "0");
    const head = heads[index];
    byId("head-title").textContent = "Layer " + head.layer + ", head " + head.head + " (" + head.name + ")";
    byId("head-summary").textContent = summary(head);
    attention();
    plots(data.details[index] || {});
    numbers(head);
    document.querySelectorAll("#table tbody tr").forEach((row) => row.classList.toggle("chosen", Number(row.dataset.index) === index));
    if (scroll) byId("one").scrollIntoView();
  }

  // -- all heads ------------------------------------------------------------------------------------
  function buildTable() {
    const theory = byId("theory").value;
    const names = ["kind", "site", ...numeric.filter((n) => measures[n].theory === theory)].filter((n) => heads.some((h) => h[n] !== null && h[n] !== undefined));
    const order = heads.map((_, i) => i);
    if (sorted.name) order.sort((a, b) => {
      const u = sorted.name === "head" ? a : heads[a][sorted.name], v = sorted.name === "head" ? b : heads[b][sorted.name];
      if (u === null || u === undefined) return 1;
      if (v === null || v === undefined) return -1;
      return (u < v ? -1 : u > v ? 1 : 0) * (sorted.down ? -1 : 1);
    });
    const table = byId("table");
    table.replaceChildren();
    const top = table.appendChild(node("thead")).appendChild(node("tr"));
    for (const name of ["head", ...names]) {
      const head = top.appendChild(node("th", { scope: "col", "aria-sort": sorted.name === name ? (sorted.down ? "descending" : "ascending") : "none" }));
      const button = head.appendChild(node("button", { type: "button", title: measures[name] ? measures[name].sentence : name }, label(name) + (sorted.name === name ? (sorted.down ? " ▾" : " ▴") : "")));
      button.addEventListener("click", () => { sorted = { name: name, down: sorted.name === name ? !sorted.down : true }; buildTable(); });
    }
    const body = table.appendChild(node("tbody"));
    for (const index of order) {
      const cells = names.map((name) => ["td", typeof heads[index][name] === "number" ? { class: "number" } : {}, short3(heads[index][name])]);
      const row = tableRow(body, [["th", { scope: "row" }, heads[index].layer + "." + heads[index].head], ...cells]);
      row.dataset.index = index;
      row.classList.toggle("chosen", index === chosen);
      row.addEventListener("click", () => choose(index, true));
    }
  }

  options(byId("measure"), byTheory(numeric));
  for (const [key, title] of Object.entries(data.theories)) byId("theory").appendChild(node("option", { value: key }, title));
  byId("measure").value = numeric.includes("sink_share_first") ? "sink_share_first" : numeric[0];
  byId("measure").addEventListener("change", paintGrid);
  byId("against").addEventListener("change", paintGrid);
  byId("theory").addEventListener("change", buildTable);
  data.sentences.forEach((shown, i) => {
    const button = byId("sentences").appendChild(node("button", { type: "button", "aria-pressed": String(i === 0) }, shown.tokens.slice(0, 6).join(" ") + " …"));
    button.addEventListener("click", () => {
      sentence = i; query = null;
      [...byId("sentences").children].forEach((b, k) => b.setAttribute("aria-pressed", String(k === i)));
      attention();
    });
  });
  buildGrid();
  paintGrid();
  buildTable();
  choose(0, false);
  if (byId("pruning-curve")) {
    const change = data.pruning.change;
    chart(byId("pruning-curve"), {
      title: "Relative change of the output after removing so many heads, greedily", xs: change.map((_, i) => i), lines: [{ label: "change", values: change }],
      x: { label: "heads removed", whole: true }, y: { range: [0, Math.max(0, ...change) * 1.05 || 1] },
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", attention);
})();
