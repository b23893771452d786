// The list of all scores: click on a heading to sort by it, type to filter. Without scripts it is a plain table.
document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table")];
  const table = tables.find((each) => each.tHead?.rows[0].cells[0].textContent.trim() === "algorithm");
  if (!table || table.tHead.rows[0].cells[1].textContent.trim() !== "task") return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  table.classList.add("score-list");

  const number = (text) => parseFloat(text.replace(/,/g, ""));
  const compare = (a, b, sign) => {
    if (!a || !b) return a ? -1 : b ? 1 : 0; // empty cells last, in both directions
    const [x, y] = [number(a), number(b)];
    return sign * (isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y);
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const text = (row) => row.cells[column].textContent.trim();
      body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b), descending ? -1 : 1)));
    });
  });

  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "filter: sac halfcheetah";
  filter.setAttribute("aria-label", "Show only rows that contain these words");
  filter.className = "score-filter";
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  (table.closest(".table-wrapper") ?? table).before(filter);
});
