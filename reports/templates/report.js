// Sort a table by the column whose heading is pressed. Cells without a value
// stay last in both directions; equal cells keep the order they came in.
(function () {
  "use strict";

  function value(row, column, numeric) {
    var key = row.cells[column].getAttribute("data-sort");
    if (key === null || key === "") return null;
    return numeric ? Number(key) : key;
  }

  function compare(a, b, numeric) {
    if (numeric) return a - b;
    return a.localeCompare(b, "en", { numeric: true });
  }

  function sort(table, heading) {
    var column = heading.cellIndex;
    var numeric = heading.getAttribute("data-type") === "number";
    var before = heading.getAttribute("aria-sort");
    var first = numeric ? "descending" : "ascending";
    var second = numeric ? "ascending" : "descending";
    var now = before === first ? second : first;
    var sign = now === "ascending" ? 1 : -1;
    var body = table.tBodies[0];
    var rows = Array.prototype.slice.call(body.rows).map(function (row) {
      return { row: row, key: value(row, column, numeric) };
    });
    rows.sort(function (a, b) {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * compare(a.key, b.key, numeric);
    });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (cell) {
      cell.setAttribute("aria-sort", cell === heading ? now : "none");
    });
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("table.sortable thead button");
    if (button) sort(button.closest("table"), button.closest("th"));
  });
})();
