// Errors of decoded values against their bound.

function drawHistogram(section, { row, policy }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const { edges, counts, worst, values } = row?.error_histogram ?? {};
  section.hidden = !Array.isArray(counts) || !Array.isArray(edges) || edges.length !== counts.length + 1
    || !counts.every(known) || !edges.every(known);
  if (section.hidden) return;
  const all = counts.reduce((a, b) => a + b, 0) || 1;
  const shares = counts.map((count) => count / all);
  // Zeros come back exact, and some networks are full of them: a column that towers above the
  // others is cut off and says how high it is.
  const [most, second] = [...shares].sort((a, b) => b - a);
  const tower = second > 0 && most > 3 * second ? shares.indexOf(most) : -1;
  const top = tower < 0 ? most * 1.2 || 1 : second * 1.7;
  const others = shares.filter((_, i) => i !== tower);
  const chart = frame(host, {
    label: `errors of ${policy.label} divided by their bound`,
    height: 360,
    x: { low: -1.15, high: 1.15, ticks: [-1, -0.5, 0, 0.5, 1], title: "error / bound", write: (v) => digits(v) },
    y: { low: 0, high: top, title: "share of values", write: (v) => percent(v) },
  });
  const ground = chart.box.bottom;
  const points = shares.map((share, i) => {
    const [from, to, peak] = [chart.x(edges[i]), chart.x(edges[i + 1]), Math.max(chart.box.top, chart.y(share))];
    if (i === tower) {
      const words = `${percent(share)} here ↑`;
      chart.canvas.append(svg("text", { x: to + 6, y: chart.box.top + 28, class: "label" }, words));
    }
    chart.canvas.append(svg("rect", { x: from + 0.5, y: peak, width: Math.max(0.5, to - from - 1), height: ground - peak, class: `mark column kind-${kindOf(policy)}` }));
    const lines = [`error ${digits(edges[i])} to ${digits(edges[i + 1])} of the bound`, ["values", grouped(counts[i], 0)], ["share", percent(share)]];
    return { x: (from + to) / 2, y: peak, lines };
  });
  for (const [edge, side] of [[-1, "end"], [1, "start"]]) {
    const x = chart.x(edge);
    chart.canvas.append(svg("path", { d: `M${x},${chart.box.top}V${ground}`, class: "limit" }));
    chart.canvas.append(svg("text", { x: x + (side === "end" ? 5 : -5), y: chart.box.top + 10, class: `label ${side === "end" ? "" : "end"}` }, "bound"));
  }
  const even = chart.y(others.reduce((a, b) => a + b, 0) / (others.length || 1));
  chart.canvas.append(svg("path", { d: `M${chart.x(-1)},${even}H${chart.x(1)}`, class: "even" }));
  const said = known(worst) ? `Largest error: ${digits(worst, 5)} of its bound` : "";
  const many = known(values) ? `${said ? ", among " : ""}${grouped(values, 0)} values.` : said ? "." : "";
  const exact = tower < 0 ? "" : ` The cut-off column has ${percent(most)} of them, most of which come back exactly: zeros above all.`;
  host.append(html("p", { class: "finding" }, said + many + exact));
  pointing(chart.canvas, points, "x");
  behind(
    section, "Errors divided by their bound", ["from", "to", "values", "share"],
    () => counts.map((count, i) => [digits(edges[i]), digits(edges[i + 1]), grouped(count, 0), percent(shares[i])]),
  );
}
