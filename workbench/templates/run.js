"use strict";
// Tables: a heading's button sorts upwards, then downwards, then puts the rows back as they came.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

function key(cell, numeric) {
  if (!numeric) return cell.textContent;
  return "number" in cell.dataset ? Number(cell.dataset.number) : null;
}

function compare(a, b, sign) {
  // What is missing stays at the end, whichever way the rest is sorted.
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const order = NEXT[head.getAttribute("aria-sort")], numeric = head.classList.contains("number");
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    const sign = order === "descending" ? -1 : 1, cell = (row) => key(row.cells[column], numeric);
    body.append(...(order === "none" ? rows : [...rows].sort((a, b) => compare(cell(a), cell(b), sign))));
  }));
}

// Grids: one cell can be reached with Tab, the others from it with the arrow keys; each is named in words.
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

for (const table of document.querySelectorAll("table.attention")) {
  const said = table.closest(".head").querySelector(".named");
  const dests = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.dataset.name);
  const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1));
  let here = cells[0][0];

  cells.forEach((row, i) => row.forEach((cell, j) => {
    const weight = "weight" in cell.dataset ? `weight ${cell.dataset.weight}` : "hidden by the mask";
    const source = cell.parentElement.cells[0].dataset.name;
    cell.tabIndex = -1;
    cell.setAttribute("aria-label", `destination ${dests[j]} ← source ${source}: ${weight}`);
    const show = () => {
      here.classList.remove("here");
      here = cell;
      here.classList.add("here");
      said.textContent = cell.getAttribute("aria-label");
    };
    cell.addEventListener("pointerover", show);  // a finger sends it too
    cell.addEventListener("focus", () => {
      table.querySelector("[tabindex='0']").tabIndex = -1;
      cell.tabIndex = 0;
      show();
    });
    cell.addEventListener("keydown", (event) => {
      let to = null;
      if (event.key in STEPS) to = (cells[i + STEPS[event.key][0]] || [])[j + STEPS[event.key][1]];
      else if (event.key === "Home") to = event.ctrlKey ? cells[0][0] : row[0];
      else if (event.key === "End") to = event.ctrlKey ? cells.at(-1).at(-1) : row.at(-1);
      else return;
      event.preventDefault();
      if (to) to.focus();
    });
  }));
  here.tabIndex = 0;
}

// On paper everything is open.
const closed = new Set();
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) closed.add(part), (part.open = true);
});
addEventListener("afterprint", () => {
  for (const part of closed) part.open = false;
  closed.clear();
});
