// Elements of the page. Text always becomes a text node, never markup.

function build(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

function svg(name, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function html(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function path(points, { closed = false } = {}) {
  const places = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
  return places.length ? `M${places.join("L")}${closed ? "Z" : ""}` : "";
}

// How wide a label of the charts is, near enough to place it.
function widthOf(text, size = 12) {
  return text.length * size * 0.56;
}

function shortened(text, width, size = 12) {
  const fits = Math.max(3, Math.floor(width / (size * 0.56)));
  return text.length <= fits ? text : `${text.slice(0, fits - 1)}…`;
}
