// What a mark stands for, by mouse, by finger and by keyboard: each chart is one stop of the tab
// key, and arrow keys move through its marks.

const tooltip = document.getElementById("tooltip");
const spoken = document.getElementById("spoken");

let shown = null;

function showTooltip(point, canvas, aloud) {
  const [title, ...pairs] = point.lines;
  shown = { point, canvas };
  const list = html("dl");
  for (const [name, value] of pairs) list.append(html("dt", {}, name), html("dd", {}, value));
  tooltip.replaceChildren(html("b", {}, title), list);
  tooltip.hidden = false;
  placeTooltip(point, canvas);
  if (aloud) spoken.textContent = [title, ...pairs.map((pair) => pair.join(": "))].join("; ");
}

function placeTooltip(point, canvas) {
  const frame = canvas.getBoundingClientRect();
  const scale = frame.width / canvas.viewBox.baseVal.width;
  const x = frame.left + point.x * scale;
  const y = frame.top + point.y * scale;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const room = document.documentElement.clientWidth;
  const left = x + 14 + width < room ? x + 14 : x - 14 - width;
  tooltip.style.left = `${Math.max(6, Math.min(left, room - width - 6))}px`;
  const above = y - height - 12;
  tooltip.style.top = `${above > 6 ? above : Math.min(y + 16, window.innerHeight - height - 6)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
  shown = null;
}

// points: [{x, y, lines: [title, [name, value], ...]}]; `by` says in which direction the nearest
// one is looked for: "both", "x" or "y".
function pointing(canvas, points, by = "both") {
  if (!points.length) return;
  const ring = svg("circle", { r: 9, class: "ring", visibility: "hidden" });
  canvas.append(ring);
  let current = -1;
  const show = (index, aloud) => {
    current = index;
    const point = points[index];
    ring.setAttribute("cx", point.x);
    ring.setAttribute("cy", point.y);
    ring.setAttribute("visibility", "visible");
    showTooltip(point, canvas, aloud);
  };
  const hide = () => {
    ring.setAttribute("visibility", "hidden");
    hideTooltip();
  };
  const nearest = (event) => {
    const frame = canvas.getBoundingClientRect();
    const scale = canvas.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale;
    const y = (event.clientY - frame.top) * scale;
    const distance = (p) =>
      by === "x" ? Math.abs(p.x - x) : by === "y" ? Math.abs(p.y - y) : Math.hypot(p.x - x, p.y - y);
    let best = 0;
    points.forEach((point, i) => {
      if (distance(point) < distance(points[best])) best = i;
    });
    return by === "both" && distance(points[best]) > 48 ? -1 : best;
  };
  const follow = (event) => {
    const index = nearest(event);
    if (index >= 0) show(index, false);
    else hide();
  };
  canvas.addEventListener("pointermove", follow);
  canvas.addEventListener("pointerdown", follow);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && document.activeElement !== canvas) hide();
  });
  canvas.addEventListener("focus", () => {
    if (canvas.matches(":focus-visible")) show(Math.max(0, current), true);
  });
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const last = points.length - 1;
    if (move) show(Math.max(0, Math.min(last, current + move)), true);
    else if (event.key === "Home") show(0, true);
    else if (event.key === "End") show(last, true);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

// A tooltip of the keyboard goes with its mark; the mouse points elsewhere after scrolling.
window.addEventListener("scroll", () => {
  if (shown && shown.canvas === document.activeElement) placeTooltip(shown.point, shown.canvas);
  else hideTooltip();
}, { passive: true });
