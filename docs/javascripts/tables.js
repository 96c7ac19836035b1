// Tables that can be sorted by a click on a head and filtered by words, and by the values of a column that has few.
// Every table with at least this number of rows has it; without JavaScript a table is as it was written.
"use strict";

const LEAST_ROWS = 8;
const MOST_VALUES = 8;

// The text of a cell without what is folded away.
function shown(cell) {
  const copy = cell.cloneNode(true);
  copy.querySelectorAll("details").forEach((details) => details.remove());
  return copy.textContent.trim();
}

// What a cell is sorted by: its first number, where it begins with one; null where it says nothing.
function key(cell) {
  const text = shown(cell);
  if (text === "" || text === "–") return null;
  const plain = text.replace(/^(?:mean |median |[<>~] )+/, "").replace("∞", "Infinity");
  const number = /^[+−-]?(?:Infinity|\d[\d,]*(?:\.\d+)?)(?![\d.]*\w*-)/.exec(plain);
  return number ? Number(number[0].replace("−", "-").replaceAll(",", "")) : text;
}

function compare(a, b) {
  if (a === null || b === null) return 0;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// Sort the rows by a column; cells that say nothing come last, both ways.
function sort(table, place, way) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[place]), row]);
  rows.sort(([a], [b]) => (a === null) - (b === null) || way * compare(a, b));
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((head, number) => {
    if (number === place) head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort";
    button.append(...head.childNodes);
    button.addEventListener("click", () =>
      sort(table, place, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
    head.append(button);
  });
}

// The values of a column by which rows are chosen: few, short, and of several rows each.
function choices(table, place) {
  const texts = [...table.tBodies[0].rows].map((row) => shown(row.cells[place]).replace(/ [†(].*$/, ""));
  const values = [...new Set(texts)].sort();
  const few = values.length > 1 && values.length <= MOST_VALUES && 2 * values.length <= texts.length;
  return few && values.every((value) => value.length < 60 && !/^\d/.test(value)) ? values : [];
}

function makeFilter(table) {
  const form = document.createElement("form");
  form.className = "table-filter";
  form.addEventListener("submit", (event) => event.preventDefault());
  const words = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter rows" });
  words.setAttribute("aria-label", "filter rows");
  const count = document.createElement("output");
  const selects = [...table.tHead.rows[0].cells].flatMap((head, place) => {
    const values = choices(table, place);
    if (!values.length) return [];
    const select = document.createElement("select");
    select.setAttribute("aria-label", head.textContent.trim());
    select.append(new Option(`${head.textContent.trim()}: all`, ""));
    select.append(...values.map((value) => new Option(value || "(none)", `=${value}`)));
    select.dataset.place = place;
    return [select];
  });
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const chosen = selects.every((select) => !select.value ||
        shown(row.cells[select.dataset.place]).replace(/ [†(].*$/, "") === select.value.slice(1));
      row.hidden = !(chosen && wanted.every((word) => text.includes(word)));
      left += !row.hidden;
    }
    count.value = `${left} of ${table.tBodies[0].rows.length} rows`;
  };
  form.addEventListener("input", apply);
  form.append(words, ...selects, count);
  table.before(form);
  apply();
}

// A link to a row that a filter hides shows it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const row = target && target.closest("tr");
  if (row) row.hidden = false;
}

function enhance() {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < LEAST_ROWS) continue;
    if (table.dataset.sorted !== undefined) continue;
    table.dataset.sorted = "";
    makeFilter(table);
    makeSortable(table);
  }
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", enhance);
else enhance();
addEventListener("hashchange", reveal);
