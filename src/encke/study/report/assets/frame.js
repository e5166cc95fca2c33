// The frame of a chart: axes with labelled grid lines, the space inside, and a title.

const TEXT = 12;

function figure(host, { title = null, label, height }) {
  const made = html("figure");
  if (title) made.append(html("figcaption", {}, title));
  host.append(made);
  const width = Math.max(260, Math.floor(made.clientWidth));
  const canvas = svg("svg", {
    class: "plot",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-roledescription": "chart",
    "aria-label": `${label}. Arrow keys move through its marks.`,
    tabindex: 0,
  });
  made.append(canvas);
  return { canvas, width, height };
}

// One picture for each scene that has members. All places are made before any is drawn in: each
// is as wide as their number lets it be.
function multiples(host, scenes, groups, drawOne) {
  const parts = scenes
    .map((scene) => [scene, groups.filter((g) => g.scene === scene)])
    .filter(([, members]) => members.length)
    .map(([scene, members]) => [html("div"), scene, members]);
  host.replaceChildren(...parts.map(([place]) => place));
  for (const [place, scene, members] of parts) drawOne(place, scene, members);
}

function axis(given, from, to) {
  return (given.log ? logarithmic : linear)(given.low, given.high, from, to);
}

// x and y: {low, high, log, flip, title, write, ticks}; `ticks` may name the values to label.
function frame(host, { title, label, height: usual, x, y, right = 14 }) {
  // A wide picture may be higher.
  const height = host.clientWidth > 800 ? Math.round(usual * 1.25) : usual;
  const { canvas, width } = figure(host, { title, label, height });
  const top = y.title ? 26 : 10;
  const bottom = x.title ? 42 : 24;
  const rows = y.ticks ?? axis(y, 0, 1).ticks(Math.max(2, Math.round((height - top - bottom) / 45)));
  const left = 10 + Math.max(18, ...rows.map((value) => widthOf(y.write(value), TEXT)));
  const box = { left, top, right: width - right, bottom: height - bottom };
  const across = axis(x, box.left, box.right);
  const up = y.flip ? axis(y, box.top, box.bottom) : axis(y, box.bottom, box.top);
  const lines = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of rows) {
    const place = up(value);
    lines.append(svg("path", { d: `M${box.left},${place}H${box.right}`, class: "grid" }));
    lines.append(svg("text", { x: box.left - 6, y: place + 4, class: "end" }, y.write(value)));
  }
  const wanted = x.ticks ?? across.ticks(Math.max(2, Math.round((box.right - box.left) / 80)));
  let free = -Infinity;
  for (const value of wanted) {
    const place = across(value);
    const half = widthOf(x.write(value), TEXT) / 2;
    lines.append(svg("path", { d: `M${place},${box.top}V${box.bottom + 4}`, class: "grid" }));
    const middle = Math.min(place, width - half - 1);
    if (middle - half > free) {
      lines.append(svg("text", { x: middle, y: box.bottom + 17, class: "middle" }, x.write(value)));
      free = middle + half + 4;
    }
  }
  lines.append(svg("path", { d: `M${box.left},${box.bottom}H${box.right}`, class: "base" }));
  if (y.title) lines.append(svg("text", { x: 0, y: 12, class: "title" }, shortened(y.title, width)));
  if (x.title) {
    const words = shortened(x.title, width);
    lines.append(svg("text", { x: box.right, y: height - 6, class: "title end" }, words));
  }
  canvas.append(lines);
  return { canvas, box, width, height, x: across, y: up };
}

// Puts labels beside points where there is room: first come, first served.
function labeller(chart, taken = []) {
  const overlaps = (a) =>
    taken.some((b) => a.x0 < b.x1 && a.x1 > b.x0 && a.y0 < b.y1 && a.y1 > b.y0);
  const covered = (a) => taken.reduce((sum, b) => sum
    + Math.max(0, Math.min(a.x1, b.x1) - Math.max(a.x0, b.x0))
    * Math.max(0, Math.min(a.y1, b.y1) - Math.max(a.y0, b.y0)), 0);
  // A label that `must` stand covers as little as it can; others stay away.
  return (text, x, y, { must = false, above = false, gap = 9, ...attributes } = {}) => {
    const width = widthOf(text, 11.5) * (must ? 1.1 : 1) + 2;
    const over = [
      [x + gap, y - gap - 2, "start"], [x - gap, y - gap - 2, "end"], [x, y - gap - 4, "middle"],
      [x, y - gap - 20, "middle"],
    ];
    const beside = [
      [x + gap, y + 4, "start"], [x - gap, y + 4, "end"], [x, y + gap + 13, "middle"],
      [x + gap, y + gap + 10, "start"], [x - gap, y + gap + 10, "end"], [x, y + gap + 28, "middle"],
    ];
    const tries = above ? [...over, ...beside] : [...beside.slice(0, 2), ...over, ...beside.slice(2)];
    const rooms = tries.map(([tx, ty, anchor]) => {
      const x0 = anchor === "start" ? tx : anchor === "end" ? tx - width : tx - width / 2;
      return { tx, ty, anchor, x0, x1: x0 + width, y0: ty - 10, y1: ty + 3 };
    }).filter((room) => room.x0 >= chart.box.left - 4 && room.x1 <= chart.box.right + 8
      && room.y0 >= chart.box.top - 4 && room.y1 <= chart.box.bottom);
    const free = rooms.find((one) => !overlaps(one));
    const room = free ?? (must ? rooms.sort((a, b) => covered(a) - covered(b))[0] : null);
    if (!room) return;
    taken.push(room);
    const place = { x: room.tx, y: room.ty, class: `label ${room.anchor}` };
    chart.canvas.append(svg("text", { ...place, ...attributes }, text));
  };
}
