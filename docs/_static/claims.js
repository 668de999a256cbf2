// Filter of the page of claims: by paper, verdict and words, without a server.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".claims-filter");
  if (!place) return;
  const sections = [...document.querySelectorAll("section section")].filter((s) => s.querySelector("table"));
  const papers = sections.map((s) => s.querySelector("h2").firstChild.textContent.trim());
  const column = (row, k) => row.cells[k].textContent.trim();
  const rows = sections.flatMap((section, k) =>
    [...section.querySelectorAll("tbody tr")].map((row) => ({ row, section, paper: papers[k], verdict: column(row, 3) })));
  const verdicts = [...new Set(rows.map((r) => r.verdict))];
  const select = (label, options) => {
    const box = document.createElement("select");
    box.setAttribute("aria-label", label);
    box.append(new Option(`every ${label}`, ""), ...options.map((o) => new Option(o, o)));
    return box;
  };
  const paper = select("paper", papers);
  const verdict = select("verdict", verdicts);
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "words";
  words.setAttribute("aria-label", "words");
  const shown = document.createElement("span");
  const apply = () => {
    const wanted = words.value.toLowerCase();
    let count = 0;
    for (const r of rows) {
      const fits = (!paper.value || r.paper === paper.value) && (!verdict.value || r.verdict === verdict.value)
        && (!wanted || r.row.textContent.toLowerCase().includes(wanted));
      r.row.style.display = fits ? "" : "none";
      count += fits;
    }
    sections.forEach((s, k) => {
      s.style.display = rows.some((r) => r.section === s && r.row.style.display === "") ? "" : "none";
    });
    shown.textContent = ` ${count} of ${rows.length} claims`;
  };
  for (const control of [paper, verdict, words]) control.addEventListener("input", apply);
  place.append(paper, " ", verdict, " ", words, shown);
  apply();
});
