// Numbers of a table stay on one line. A filter above long tables: one box per page, words narrow every table of it.
document.addEventListener("DOMContentLoaded", () => {
  for (const cell of document.querySelectorAll("article td"))
    if (/^[-+<]?[\d.,]+(e-?\d+)?( ?(us|ms|s|x|%|MB|degrees))?$/.test(cell.textContent.trim())) cell.style.whiteSpace = "nowrap";
  const tables = [...document.querySelectorAll("article table, main table")].filter((table, k, all) =>
    table.querySelector("tbody tr") && !table.closest(".highlight") && all.indexOf(table) === k);
  const bodies = (table) => [...table.querySelectorAll("tbody tr")];
  const counts = tables.map((table) => bodies(table).length);
  const long = tables.filter((_, k) => counts[k] >= 30); // one look takes shorter ones in
  if (!long.length) return;
  const rows = long.flatMap((table) => bodies(table).map((row) => ({ row, table, text: row.textContent.toLowerCase() })));
  // Sections of hardly more than tables go with them.
  const said = (section) => [...section.querySelectorAll("p, li, pre")].filter((p) => !p.closest("table"))
    .reduce((length, p) => length + p.textContent.length, 0);
  const sections = [...document.querySelectorAll("section section")].filter((section) => said(section) < 80)
    .map((section) => [section, long.filter((table) => section.contains(table))]).filter((pair) => pair[1].length);
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "filter the rows by words";
  box.size = 28;
  box.setAttribute("aria-label", "filter the tables of this page");
  const shown = document.createElement("span");
  const apply = () => {
    const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const full = new Set();
    for (const r of rows) {
      const fits = wanted.every((word) => r.text.includes(word));
      r.row.style.display = fits ? "" : "none";
      if (fits) full.add(r);
    }
    const empty = (table) => ![...full].some((r) => r.table === table);
    for (const table of long) (table.closest(".table-wrapper") || table).style.display = empty(table) ? "none" : "";
    for (const [section, inside] of sections) section.style.display = inside.every(empty) ? "none" : "";
    shown.textContent = ` ${full.size} of ${rows.length} rows`;
  };
  box.addEventListener("input", apply);
  const place = document.createElement("p");
  place.className = "tables-filter";
  place.append(box, shown);
  let first = long[0].closest(".table-wrapper") || long[0];
  while (first.parentNode.tagName === "SECTION" && first.parentNode.parentNode.closest("section")) first = first.parentNode;
  first.parentNode.insertBefore(place, first);
  apply();
});
