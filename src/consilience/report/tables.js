"use strict";
// Tables of plain text, whatever a party is called; in pages if long, sortable by any column.

function element(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Whether the page is being printed: then tables are not split into pages. Charts are as wide as a
// card on a sheet of A4 or Letter.
const paper = { on: false, width: 670 };

// columns: [{title, sort(row), cell(row), left, first}]; state keeps {by, down, page} between drawings.
function table(holder, columns, rows, state, { perPage: most = Infinity, caption, rowClass, onRow } = {}) {
  const draw = () => {
    const perPage = paper.on ? Infinity : most;
    const focused = holder.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const pages = Math.max(1, Math.ceil(rows.length / perPage));
    state.page = Math.min(state.page ?? 0, pages - 1);
    const ordered = sorted(columns, rows, state);
    const start = perPage === Infinity ? 0 : state.page * perPage;
    const top = holder.scrollTop;
    holder.replaceChildren(
      element(
        "table",
        {},
        element("caption", {}, caption),
        element(
          "thead",
          {},
          element("tr", {}, ...columns.map((column, k) => header(column, k, state, draw))),
        ),
        element(
          "tbody",
          {},
          ...ordered.slice(start, start + perPage).map((row) => body(columns, row, rowClass, onRow)),
        ),
      ),
      ...(pages > 1 ? [pager(state, pages, draw)] : []),
    );
    holder.scrollTop = top;
    if (focused) holder.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };
  draw();
}

function sorted(columns, rows, { by = null, down = false }) {
  if (by === null) return rows;
  const key = columns[by].sort;
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (typeof x === "string") return x.localeCompare(y, undefined, { numeric: true });
    return (Number.isNaN(x) ? Infinity : x) - (Number.isNaN(y) ? Infinity : y) || 0;
  };
  return [...rows].sort(down ? (a, b) => compare(b, a) : compare);
}

function header(column, k, state, draw) {
  const direction = state.by !== k ? null : state.down ? "descending" : "ascending";
  const attributes = { scope: "col", class: column.left ? "left" : null, "aria-sort": direction };
  if (!column.sort) return element("th", attributes, column.title);
  const onclick = () => {
    const again = state.by === k;
    Object.assign(state, { by: k, down: again ? !state.down : Boolean(column.down), page: 0 });
    draw();
  };
  const button = element("button", { type: "button", onclick }, column.title);
  button.dataset.key = `sort ${k}`;
  return element("th", attributes, button);
}

function body(columns, row, rowClass, onRow) {
  const onclick = onRow ? () => onRow(row) : null;
  const attributes = { class: rowClass?.(row) ?? null };
  if (onclick) attributes.onclick = onclick;
  return element(
    "tr",
    attributes,
    ...columns.map((column, k) => {
      const kind = k === 0 ? "th" : "td";
      return element(
        kind,
        { class: column.left ? "left" : null, scope: k === 0 ? "row" : null },
        column.cell(row),
      );
    }),
  );
}

function pager(state, pages, draw) {
  const step = (by) => () => {
    state.page = Math.min(pages - 1, Math.max(0, state.page + by));
    draw();
  };
  const before = element("button", { type: "button", onclick: step(-1) }, "Before");
  const after = element("button", { type: "button", onclick: step(1) }, "After");
  [before.dataset.key, after.dataset.key] = ["before", "after"];
  return element("p", { class: "pager" }, before, ` ${state.page + 1} of ${pages} `, after);
}
