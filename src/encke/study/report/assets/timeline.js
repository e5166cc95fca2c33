// Memory over the course of one step: the mountain, and what is left of it.

function drawTimeline(section, { row, policy }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const clean = (points) =>
    (Array.isArray(points) ? points : []).filter((p) => known(p?.[0]) && known(p?.[1])).sort((a, b) => a[0] - b[0]);
  const plain = clean(row?.timeline?.plain);
  const kept = policy.kind === "plain" ? [] : clean(row?.timeline?.kept);
  section.hidden = !plain.length && !kept.length;
  if (section.hidden) return;
  const peak = Math.max(...[...plain, ...kept].map((p) => p[1]), 1);
  const [letters, factor] = sizeUnit(peak);
  const chart = frame(host, {
    label: `bytes held for backward over one step, plain and ${policy.label}`,
    height: 320,
    x: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], title: "share of the step's time", write: (v) => `${100 * v} %` },
    y: { low: 0, high: (peak / factor) * 1.2, title: `held for backward, ${letters}`, write: (v) => digits(v) },
  });
  const place = ([t, bytes]) => [chart.x(t), chart.y(bytes / factor)];
  const ground = chart.box.bottom;
  for (const [points, kind] of [[plain, "plain"], [kept, kindOf(policy)]]) {
    if (!points.length) continue;
    const line = stairs(points).map(place);
    const hill = [[line[0][0], ground], ...line, [line[line.length - 1][0], ground]];
    chart.canvas.append(svg("path", { d: path(hill, { closed: true }), class: `hill kind-${kind}` }));
    chart.canvas.append(svg("path", { d: path(line), class: `mark line kind-${kind}` }));
  }
  const turn = row.timeline.forward_end?.kept ?? row.timeline.forward_end?.plain;
  const label = labeller(chart, drawTurn(chart, turn));
  for (const [points, words] of [[plain, "plain"], [kept, policy.label]]) {
    if (!points.length) continue;
    const top = points.reduce((a, b) => (b[1] > a[1] ? b : a));
    label(`${shortened(words, 170)}: ${size(top[1])}`, ...place(top), { must: true, above: true, "font-weight": 600 });
  }
  const moments = [...new Set([...plain, ...kept].map(([t]) => t))].sort((a, b) => a - b);
  const points = moments.map((t) => ({
    x: chart.x(t),
    y: chart.y((heldAt(plain.length ? plain : kept, t) ?? 0) / factor),
    lines: [`${digits(100 * t)} % of the step`, ["plain", size(heldAt(plain, t))], [policy.label, size(heldAt(kept, t))]],
  }));
  pointing(chart.canvas, points, "x");
  behind(
    section, "Bytes held for backward over one step", ["share of the step", "plain", policy.label],
    () => moments.map((t) => [`${digits(100 * t)} %`, size(heldAt(plain, t)), size(heldAt(kept, t))]),
  );
}

// What is held changes at moments and stays as it is between them.
function stairs(points) {
  return points.flatMap((point, i) => (i ? [[point[0], points[i - 1][1]], point] : [point]));
}

function heldAt(points, t) {
  return points.findLast((point) => point[0] <= t)?.[1];
}

// Where forward ends; what its words occupy.
function drawTurn(chart, moment) {
  if (!known(moment)) return [];
  const x = chart.x(moment);
  const y = chart.box.top + 10;
  chart.canvas.append(
    svg("path", { d: `M${x},${chart.box.top}V${chart.box.bottom}`, class: "turn" }),
    svg("text", { x: x - 7, y, class: "label end" }, "forward"),
    svg("text", { x: x + 7, y, class: "label" }, "backward"),
  );
  return [{ x0: x - 60, x1: x + 70, y0: y - 12, y1: y + 6 }];
}
