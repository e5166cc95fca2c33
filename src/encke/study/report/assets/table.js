// The table behind a picture, made when it is opened.

function fillTable(place, caption, columns, rows, words = 1) {
  const align = (i) => (i < words ? null : "figure");
  const head = html("tr", {}, ...columns.map((name, i) => html("th", { scope: "col", class: align(i) }, name)));
  const body = rows.map((row) =>
    html("tr", {}, ...row.map((cell, i) =>
      i === 0
        ? html("th", { scope: "row" }, cell)
        : html("td", { class: align(i), "data-label": columns[i] }, cell))));
  const made = html(
    "table", {},
    html("caption", {}, caption),
    html("thead", {}, head),
    html("tbody", {}, ...body),
  );
  const wide = html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, made);
  place.replaceChildren(wide);
}

// `rows` is a function: most tables are never opened.
function behind(section, caption, columns, rows, words = 1) {
  const details = section.querySelector("details.behind");
  const fill = () => {
    if (details.open) fillTable(details.lastElementChild, caption, columns, rows(), words);
  };
  details.ontoggle = fill;
  fill();
}
