// Step time relative to plain: a row for each setting.

function drawTime(section, { view, rows, groups, scenes }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const shown = groups.filter((g) => g.time?.mean > 0 && view.policies[g.policy].kind !== "plain");
  behind(
    section, "Step time relative to plain",
    ["setting", "network and data", "relative to plain", "range of seeds", "seconds a step", "plain"],
    () => shown.map((g) => [
      view.policies[g.policy].label, view.scenes[g.scene].label, times(g.time.mean),
      `${times(g.time.low)} to ${times(g.time.high)}`,
      digits(meanOf(rows, g, "step_seconds")), digits(meanOf(rows, g, "plain_step_seconds")),
    ]),
    2,
  );
  if (!shown.length) {
    host.append(html("p", { class: "note" }, "No step time was measured for the settings shown."));
    return;
  }
  const one = scenes.length === 1;
  const lanes = [...Map.groupBy(shown, (g) => g.policy)].map(([policy, members]) => ({
    policy: view.policies[policy],
    mean: Math.exp(members.reduce((sum, g) => sum + Math.log(g.time.mean), 0) / members.length),
    dots: one
      ? members.flatMap((g) => g.rows.map((i) => [rows[i].time?.relative, `seed ${rows[i].seed}`]))
      : members.map((g) => [g.time.mean, view.scenes[g.scene].label]),
  })).map((lane) => ({ ...lane, dots: lane.dots.filter(([value]) => value > 0) })).sort((a, b) => a.mean - b.mean);
  timeLanes(host, lanes, one ? view.scenes[scenes[0]].label : `${scenes.length} networks and data`);
}

function meanOf(rows, g, key) {
  const found = g.rows.map((i) => rows[i].time?.[key]).filter(known);
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
}

function timeLanes(host, lanes, where) {
  const narrow = host.clientWidth < 620;
  const lane = narrow ? 44 : 30;
  const names = narrow ? 8 : Math.min(260, Math.max(...lanes.map((l) => widthOf(l.policy.label, 13))) + 44);
  const top = 28;
  const height = top + lanes.length * lane + 40;
  const { canvas, width } = figure(host, { label: `step time of ${lanes.length} settings relative to plain, ${where}`, height });
  const values = lanes.flatMap((l) => [l.mean, ...l.dots.map(([value]) => value)]);
  const low = Math.min(0.9, ...values);
  const high = Math.max(1.1, ...values);
  const log = high > 4 * low;
  const x = log
    ? logarithmic(low / 1.05, high * 1.05, names + 8, width - 62)
    : linear(low - (high - low) * 0.04, high + (high - low) * 0.04, names + 8, width - 62);
  const bottom = height - 40;
  for (const value of x.ticks(narrow ? 4 : 8)) {
    canvas.append(svg("path", { d: `M${x(value)},${top - 6}V${bottom}`, class: "grid" }));
    canvas.append(svg("text", { x: x(value), y: bottom + 16, class: "middle" }, `${digits(value)}×`));
  }
  canvas.append(svg("path", { d: `M${x(1)},${top - 10}V${bottom}`, class: "base strong" }));
  canvas.append(svg("text", { x: x(1), y: 12, class: "title middle" }, "plain"));
  canvas.append(svg("text", { x: width, y: height - 6, class: "title end" }, `step time relative to plain${log ? " (logarithmic)" : ""}`));
  const points = [];
  lanes.forEach(({ policy, mean, dots }, i) => {
    const y = top + i * lane + (narrow ? 31 : lane / 2);
    const kind = kindOf(policy);
    const [from, to] = [x(1), x(mean)].sort((a, b) => a - b);
    canvas.append(svg("rect", { x: from, y: y - 6, width: Math.max(1, to - from), height: 12, class: `mark bar kind-${kind}` }));
    const name = shortened(policy.label, narrow ? width - 50 : names - 40, 13);
    canvas.append(mark(policy, 12, narrow ? y - 19 : y, 5));
    canvas.append(svg("text", { x: 24, y: narrow ? y - 14 : y + 4, class: "name" }, name));
    for (const [value] of dots) {
      canvas.append(svg("circle", { cx: x(value), cy: y, r: 3.5, class: `dot kind-${kind}` }));
    }
    const furthest = Math.max(to, ...dots.map(([value]) => x(value)));
    canvas.append(svg("text", { x: furthest + 8, y: y + 4, class: "label" }, times(mean)));
    points.push({ x: x(mean), y, lines: [policy.label, ["geometric mean", times(mean)], ...dots.slice(0, 14).map(([v, n]) => [n, times(v)])] });
  });
  pointing(canvas, points, "y");
}
