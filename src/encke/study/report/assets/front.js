// Quality against memory: one picture for each network and data.

function drawFront(section, { view, groups, scenes, state }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const memory = state.memory;
  const named = memory === "stored" ? "kept for backward" : "measured peak of the training";
  const shown = groups.filter((g) => g.metric && g[memory]?.mean > 0);
  multiples(host, scenes, shown, (place, scene, members) =>
    frontOf(place, view, view.scenes[scene], members, memory, named));
  if (!shown.length) host.append(html("p", { class: "note" }, `Nothing here has a memory ${named}.`));
  const rows = () => groups.map((g) => frontRow(view, g));
  behind(section, "Quality and memory of every setting", FRONT_COLUMNS, rows, 2);
}

const FRONT_COLUMNS = [
  "setting", "network and data", "seeds", "metric", "range of seeds", "against plain",
  "as well as plain", "kept", "than plain", "peak of the training", "step time",
];

function frontRow(view, g) {
  const scene = view.scenes[g.scene];
  const { unit, lower } = scene.metric;
  const plain = view.policies[g.policy].kind === "plain";
  const change = g.loss === null || plain ? null : lower ? g.loss : -g.loss;
  return [
    view.policies[g.policy].label,
    scene.label,
    g.failed ? `${g.rows.length} (${g.failed} failed)` : String(g.rows.length),
    measure(g.metric?.mean, unit),
    g.metric && g.metric.count > 1 ? `${measure(g.metric.low, unit)} to ${measure(g.metric.high, unit)}` : NONE,
    difference(change, unit),
    g.asWell === null || plain ? NONE : g.asWell ? "yes" : "no",
    size(g.stored?.mean),
    plain ? NONE : saved(g.saving),
    size(g.peak?.mean),
    times(g.time?.mean),
  ];
}

// Trainings that went far astray would press all others into one line: they are drawn at the
// edge of the picture, with their value.
function qualityRange(scene, members) {
  const sign = scene.metric.lower ? -1 : 1;
  const gains = members.map((g) => sign * g.metric.mean).sort((a, b) => b - a);
  const spread = Math.max(...members.map((g) => g.metric.high - g.metric.low), 0);
  const allowed = known(scene.floor) ? Math.abs(scene.floor - scene.plain) : spread;
  const middle = gains[0] - gains[Math.floor(gains.length / 2)];
  const reach = Math.max(8 * allowed, 4 * middle, 3 * spread);
  const shown = gains.filter((gain) => gains[0] - gain <= reach);
  const worst = shown[shown.length - 1];
  const inside = members.filter((g) => sign * g.metric.mean >= worst);
  const ends = inside.flatMap((g) => [sign * g.metric.low, sign * g.metric.high]);
  if (known(scene.floor)) ends.push(sign * scene.floor);
  let [low, high] = extent(ends);
  const pad = (high - low) * 0.08 || Math.abs(high) * 0.01 || 0.5;
  low -= shown.length < gains.length ? 3 * pad : pad;
  high += pad;
  return sign < 0 ? [-high, -low] : [low, high];
}

function frontOf(host, view, scene, members, memory, named) {
  const { name, unit, lower } = scene.metric;
  const [low, high] = qualityRange(scene, members);
  const [least, most] = extent(members.flatMap((g) => [g[memory].low, g[memory].high].filter((v) => v > 0)));
  const [letters, factor] = sizeUnit(most);
  const chart = frame(host, {
    title: scene.label,
    label: `${name} against memory of ${members.length} settings, ${scene.label}`,
    height: 330,
    right: 20,
    x: { low: (least / factor) / 1.25, high: (most / factor) * 1.25, log: true, title: `${named}, ${letters} (logarithmic)`, write: (v) => digits(v) },
    y: { low, high, flip: lower, title: `${name}${unit ? `, ${unit}` : ""}${lower ? " (lower is better: up)" : ""}`, write: (v) => digits(v, 4) },
  });
  const { canvas, box } = chart;
  const inside = (value) => Math.max(box.top + 4, Math.min(box.bottom - 6, chart.y(value)));
  if (known(scene.floor)) {
    const floor = inside(scene.floor);
    canvas.append(svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: Math.max(0, floor - box.top), class: "zone" }));
    canvas.append(svg("path", { d: `M${box.left},${floor}H${box.right}`, class: "floor" }));
  }
  const placed = members.map((g) => ({
    g,
    policy: view.policies[g.policy],
    x: chart.x(g[memory].mean / factor),
    y: inside(g.metric.mean),
    astray: lower ? g.metric.mean > high : g.metric.mean < low,
  }));
  drawFamilies(canvas, placed);
  const edge = placed.filter((p) => p.g.front[memory]).sort((a, b) => a.x - b.x);
  const stairs = edge.flatMap((p, i) => (i ? [[p.x, edge[i - 1].y], [p.x, p.y]] : [[p.x, p.y]]));
  canvas.append(svg("path", { d: path(stairs), class: "front" }));
  for (const p of placed) {
    if (!p.astray && p.g.metric.count > 1) {
      const [from, to] = [inside(p.g.metric.low), inside(p.g.metric.high)];
      canvas.append(svg("path", { d: `M${p.x},${from}V${to}`, class: `whisker kind-${kindOf(p.policy)}` }));
    }
  }
  const taken = placed.map((p) => ({ x0: p.x - 7, x1: p.x + 7, y0: p.y - 6, y1: p.y + 6 }));
  taken.push(...placed.filter((p) => !p.astray).map((p) => (
    { x0: p.x - 1, x1: p.x + 1, y0: inside(p.g.metric[lower ? "low" : "high"]), y1: inside(p.g.metric[lower ? "high" : "low"]) })));
  const label = labeller(chart, taken);
  for (const p of placed) {
    if (p.g.best) canvas.append(svg("circle", { cx: p.x, cy: p.y, r: 12, class: "best" }));
    canvas.append(mark(p.policy, p.x, p.y));
  }
  const weight = (p) => (p.g.best ? 0 : p.policy.kind === "plain" ? 1 : p.astray ? 2 : p.g.front[memory] ? 3 : 4);
  const room = (box.right - box.left) * 0.5;
  for (const p of [...placed].sort((a, b) => weight(a) - weight(b))) {
    const words = shortened(p.policy.label, room, 11.5);
    const text = p.astray ? `${words} ↓ ${digits(p.g.metric.mean, 3)}` : words;
    label(text, p.x, p.y, p.g.best ? { must: true, gap: 14, "font-weight": 600 } : {});
  }
  const points = placed.map((p) => ({ x: p.x, y: p.y, lines: frontLines(scene, p.policy, p.g) }));
  pointing(canvas, points.sort((a, b) => a.x - b.x));
}

// A thin line through the settings of one kind: what its knob trades.
function drawFamilies(canvas, placed) {
  const families = Map.groupBy(placed.filter((p) => !p.astray), (p) => kindOf(p.policy));
  for (const [kind, members] of families) {
    if (members.length < 2) continue;
    const points = members.map((p) => [p.x, p.y]).sort((a, b) => a[0] - b[0]);
    canvas.append(svg("path", { d: path(points), class: `family kind-${kind}` }));
  }
}

function frontLines(scene, policy, g) {
  const { name, unit, lower } = scene.metric;
  const { mean, low, high, count } = g.metric;
  const lines = [policy.label, [name, measure(mean, unit)]];
  if (count > 1) lines.push([`${count} seeds`, `${measure(low, "")} to ${measure(high, unit)}`]);
  if (g.loss !== null && policy.kind !== "plain") {
    lines.push(["against plain", difference(lower ? g.loss : -g.loss, unit)]);
  }
  lines.push(["kept for backward", size(g.stored?.mean)]);
  if (g.saving && policy.kind !== "plain") lines.push(["than plain", saved(g.saving)]);
  if (g.peak) lines.push(["peak of the training", size(g.peak.mean)]);
  if (g.time) lines.push(["step time", `${times(g.time.mean)} that of plain`]);
  if (g.failed) lines.push(["failed", counted(g.failed, "seed")]);
  if (g.best) lines.push(["", "the best setting here"]);
  else if (g.asWell === false) lines.push(["", "ends worse than plain"]);
  return lines;
}
