// What is kept of each layer: columns as wide as plain bytes, filled as far as bytes are kept.

const WAYS = ["lossy", "exact", "lossless", "mask", "index", "derived", "shared", "shape"];
const WAY_NAMES = {
  lossy: "within a bound",
  exact: "as it is",
  lossless: "packed without loss",
  mask: "one bit a value",
  index: "places, in few bits",
  derived: "computed from another",
  shared: "the same as another",
  shape: "only the shape",
};

function wayOf(layer) {
  return WAYS.includes(layer.how) ? layer.how : "other";
}

function wayName(way) {
  return WAY_NAMES[way] ?? "other";
}

function drawLayers(section, { row, policy }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const layers = (Array.isArray(row?.layers) ? row.layers : []).filter((l) => l && known(l.plain_bytes));
  // A shared tensor's bytes count where it is stored.
  const shown = layers.filter((l) => l.how !== "shared" && l.plain_bytes > 0);
  section.hidden = !shown.length;
  if (section.hidden) return;
  const whole = shown.reduce((sum, l) => sum + l.plain_bytes, 0);
  const left = shown.reduce((sum, l) => sum + (l.stored_bytes ?? 0), 0);
  const [letters, factor] = sizeUnit(whole);
  host.append(legendOfWays(layers));
  const chart = frame(host, {
    label: `bytes of ${shown.length} tensors, plain and kept by ${policy.label}`,
    height: 340,
    x: { low: 0, high: whole / factor, title: `size in plain training, in the order of the network, ${letters}`, write: (v) => digits(v) },
    y: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], title: "share that is kept", write: (v) => `${100 * v} %` },
  });
  let start = 0;
  const points = [];
  const blocks = [];
  for (const layer of shown) {
    const [from, to] = [chart.x(start / factor), chart.x((start + layer.plain_bytes) / factor)];
    start += layer.plain_bytes;
    const share = Math.min(1, (layer.stored_bytes ?? 0) / layer.plain_bytes);
    const top = chart.y(share);
    const gap = to - from > 4 ? 1 : 0;
    const column = { x: from, width: Math.max(0.4, to - from - gap) };
    chart.canvas.append(svg("rect", { ...column, y: chart.box.top, height: chart.box.bottom - chart.box.top, class: `tint way-${wayOf(layer)}` }));
    chart.canvas.append(svg("rect", { ...column, y: top, height: chart.box.bottom - top, class: `mark full way-${wayOf(layer)}` }));
    points.push({ x: (from + to) / 2, y: top, lines: layerLines(layer) });
    const block = String(layer.module ?? "").split(".")[0] || "(top)";
    const last = blocks[blocks.length - 1];
    if (last?.block === block) last.to = to;
    else blocks.push({ block, from, to });
  }
  drawBlocks(chart, blocks);
  host.append(html("p", { class: "finding" }, layerSums(row, whole, left)));
  pointing(chart.canvas, points, "x");
  behind(
    section, "Tensors that backward needs",
    ["layer", "op", "role", "kept as", "codec", "why", "values", "bound", "plain", "kept", "less"],
    () => layers.map((l) => [
      l.module || "(top)", l.op ?? "", l.role ?? "", `${l.how ?? "?"}`, l.codec ?? "", l.why ?? "",
      known(l.elements) ? grouped(l.elements, 0) : NONE, l.bound ? digits(l.bound) : NONE,
      size(l.plain_bytes), size(l.stored_bytes), l.stored_bytes > 0 ? times(l.plain_bytes / l.stored_bytes) : NONE,
    ]),
    6,
  );
}

// What the columns come to beside the step's own sums: two operations may save one tensor, and
// what the loss saves does not pass through the tape.
function layerSums(row, whole, left) {
  const { plain_bytes: plain, stored_bytes: stored } = row.memory ?? {};
  const parts = [];
  if (plain > 0 && stored > 0) {
    parts.push(`Plain autograd holds ${size(plain)} at the peak of a step, here it is ${size(stored)}: ${times(plain / stored)} less.`);
    if (whole > 1.01 * plain) parts.push(`The columns add up to ${size(whole)}, because a tensor that two operations save has two of them.`);
    if (stored > 1.01 * left) parts.push(`${size(stored - left)} are held outside of them, by the loss for instance.`);
  } else {
    parts.push(`${size(whole)} become ${size(left)}.`);
  }
  return parts.join(" ") + codecShares(row.codecs);
}

function codecShares(codecs) {
  const shares = Object.entries(codecs ?? {}).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
  return shares.length ? ` By codec: ${shares.map(([name, bytes]) => `${name} ${size(bytes)}`).join(", ")}.` : "";
}

function layerLines(layer) {
  const lines = [layer.module || "(top)", ["op", [layer.op, layer.role].filter(Boolean).join(", ")]];
  lines.push(["kept", wayName(wayOf(layer)) + (layer.codec ? ` (${layer.codec})` : "")]);
  if (layer.bound) lines.push(["bound", `±${digits(layer.bound)}`]);
  lines.push(["plain", size(layer.plain_bytes)], ["kept bytes", size(layer.stored_bytes)]);
  if (layer.stored_bytes > 0) lines.push(["less", times(layer.plain_bytes / layer.stored_bytes)]);
  if (layer.why) lines.push(["why", String(layer.why)]);
  return lines;
}

// Names of the network's parts between the columns that belong to them.
function drawBlocks(chart, blocks) {
  for (const { block, from, to } of blocks) {
    chart.canvas.append(svg("path", { d: `M${to},${chart.box.top}V${chart.box.bottom}`, class: "block" }));
    if (to - from > widthOf(block, 11.5) + 6) {
      chart.canvas.append(svg("text", { x: (from + to) / 2, y: chart.box.top + 14, class: "label middle" }, block));
    }
  }
}

function legendOfWays(layers) {
  const sums = new Map();
  for (const layer of layers) {
    const sum = sums.get(wayOf(layer)) ?? { count: 0, plain: 0, stored: 0 };
    sum.count += 1;
    sum.plain += layer.plain_bytes;
    sum.stored += layer.stored_bytes ?? 0;
    sums.set(wayOf(layer), sum);
  }
  const items = [...WAYS, "other"].filter((way) => sums.has(way)).map((way) => {
    const { count, plain, stored } = sums.get(way);
    const swatch = svg("svg", { class: "sample", width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" },
      svg("rect", { x: 1, y: 1, width: 14, height: 14, class: `tint way-${way}` }),
      svg("rect", { x: 1, y: 8, width: 14, height: 7, class: `full way-${way}` }));
    const bytes = way === "shared" ? "no bytes of their own" : `${size(plain)} → ${stored > 0 ? size(stored) : "0 B"}`;
    return html("li", {}, swatch, html("b", {}, wayName(way)), ` ${counted(count, "tensor")}, ${bytes}`);
  });
  return html("ul", { class: "ways" }, ...items);
}
