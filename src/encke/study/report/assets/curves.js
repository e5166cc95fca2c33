// The course of training: one picture for each network and data.

const COURSE_NAMES = { train_loss: "training loss", test_loss: "test loss" };
const MANY = 6;

function drawCurves(section, { view, groups, scenes, state }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const course = state.course;
  const shown = groups.filter((g) => g.curve[course].some((band) => band));
  multiples(host, scenes, shown, (place, scene, members) =>
    curvesOf(place, view, view.scenes[scene], members, course));
  if (!shown.length) host.append(html("p", { class: "note" }, "Nothing here has such a curve."));
  behind(
    section, "Course of training, mean over seeds",
    ["setting", "network and data", "step", "mean", "lowest", "highest"],
    () => shown.flatMap((g) => g.curve.steps.flatMap((step, i) => {
      const band = g.curve[course][i];
      return band
        ? [[view.policies[g.policy].label, view.scenes[g.scene].label, grouped(step, 0), ...band.map((v) => digits(v, 4))]]
        : [];
    })),
    2,
  );
}

function curvesOf(host, view, scene, members, course) {
  const isMetric = course === "metric";
  const { name, unit } = scene.metric;
  const quantity = isMetric ? name : COURSE_NAMES[course];
  const values = members.flatMap((g) => g.curve[course].flatMap((band) => band ?? []));
  const log = !isMetric && Math.min(...values) > 0 && Math.max(...values) > 3 * Math.min(...values);
  let [low, high] = extent(values);
  const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
  [low, high] = log ? [low / 1.06, high * 1.06] : [low - pad, high + pad];
  const steps = members.flatMap((g) => g.curve.steps);
  const chart = frame(host, {
    title: scene.label,
    label: `${quantity} by step, ${members.length} settings, ${scene.label}`,
    height: 280,
    x: { low: 0, high: Math.max(...steps, 1), title: "step", write: (v) => grouped(v, 0) },
    y: { low, high, log, title: `${quantity}${isMetric && unit ? `, ${unit}` : ""}${log ? " (logarithmic)" : ""}`, write: (v) => digits(v) },
  });
  const points = [];
  // With many lines, only those one looks for first have a band, and they lie on top.
  const chosen = (g) => members.length <= MANY || g.best || ["plain", "encke"].includes(view.policies[g.policy].kind);
  const ordered = [...members].sort((a, b) => chosen(a) - chosen(b));
  for (const g of ordered) {
    const policy = view.policies[g.policy];
    const kind = kindOf(policy);
    const runs = runsOf(g.curve.steps, g.curve[course]);
    for (const run of runs) {
      const at = (i) => run.map(([step, band]) => [chart.x(step), chart.y(band[i])]);
      if (chosen(g) && g.rows.length > 1) {
        const band = [...at(2), ...at(1).reverse()];
        chart.canvas.append(svg("path", { d: path(band, { closed: true }), class: `band kind-${kind}` }));
      }
      const line = { d: path(at(0)), class: `mark line kind-${kind}${chosen(g) ? "" : " faint"}`, "stroke-dasharray": dashOf(policy) };
      chart.canvas.append(svg("path", line));
      if (run.length === 1) chart.canvas.append(mark(policy, ...at(0)[0], 4));
      for (const [step, band] of run) {
        const value = (v) => (isMetric ? measure(v, unit) : digits(v, 4));
        const spread = g.rows.length > 1 ? [["seeds", `${value(band[1])} to ${value(band[2])}`]] : [];
        points.push({ x: chart.x(step), y: chart.y(band[0]), lines: [policy.label, ["step", grouped(step, 0)], [quantity, value(band[0])], ...spread] });
      }
    }
  }
  pointing(chart.canvas, points);
}

// Stretches without a gap.
function runsOf(steps, bands) {
  const runs = [];
  let open = null;
  bands.forEach((band, i) => {
    if (!band) open = null;
    else if (open) open.push([steps[i], band]);
    else runs.push((open = [[steps[i], band]]));
  });
  return runs;
}
