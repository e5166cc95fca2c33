// The controller's prediction of the error in each gradient against the measured one.

const AGREE = 0.2;

function drawGradients(section, { gradients, policy }) {
  const host = section.querySelector(".plots");
  host.replaceChildren();
  const found = gradients.filter((e) => e && e.predicted > 0 && e.measured > 0);
  section.hidden = !found.length;
  if (section.hidden) return;
  const relative = found.every((e) => e.square > 0);
  const values = found.map((e) => ({
    ...e,
    across: relative ? e.predicted / e.square : e.predicted,
    up: relative ? e.measured / e.square : e.measured,
  }));
  const [least, most] = extent(values.flatMap((e) => [e.across, e.up]));
  const range = { low: least / 1.6, high: most * 1.6, log: true, write: (v) => tenPower(v) };
  const of = relative ? ", share of the gradient's squared norm" : ", variance";
  const chart = frame(host, {
    label: `error of ${values.length} gradients, predicted and measured, ${policy.label}`,
    height: 360,
    x: { ...range, title: `predicted${of}` },
    y: { ...range, title: `measured${of}` },
  });
  const { low, high } = chart.x;
  const line = (factor) => [[low, low * factor], [high, high * factor]].map(([a, b]) => [chart.x(a), chart.y(b)]);
  const clip = svg("clipPath", { id: "gradients-clip" }, svg("rect", { x: chart.box.left, y: chart.box.top, width: chart.box.right - chart.box.left, height: chart.box.bottom - chart.box.top }));
  const band = path([...line(1 + AGREE), ...line(1 - AGREE).reverse()], { closed: true });
  chart.canvas.append(
    clip,
    svg("path", { d: band, class: "zone", "clip-path": "url(#gradients-clip)" }),
    svg("path", { d: path(line(1)), class: "equal" }),
  );
  const points = values.map((e) => {
    const [x, y] = [chart.x(e.across), chart.y(e.up)];
    chart.canvas.append(mark({ ...policy, peer: false }, x, y, 4));
    return { x, y, lines: [
      e.parameter || e.module || "(top)", ["op", e.op ?? ""],
      ["predicted", scientific(e.across)], ["measured", scientific(e.up)],
      ["measured / predicted", digits(e.measured / e.predicted)],
    ] };
  });
  pointing(chart.canvas, points.sort((a, b) => a.x - b.x));
  const ratios = values.map((e) => e.measured / e.predicted).sort((a, b) => a - b);
  const close = ratios.filter((r) => Math.abs(r - 1) <= AGREE).length;
  const middle = ratios[Math.floor(ratios.length / 2)];
  host.append(html("p", { class: "finding" }, `${close} of ${counted(ratios.length, "gradient")} lie within 20 % of the prediction; measured over predicted is ${middle.toFixed(2)} in the median.`));
  behind(
    section, "Error of each gradient", ["parameter", "layer", "op", "predicted", "measured", "measured / predicted"],
    () => values.map((e) => [e.parameter ?? "", e.module ?? "", e.op ?? "", scientific(e.across), scientific(e.up), digits(e.measured / e.predicted)]),
    3,
  );
}

function scientific(value) {
  return known(value) ? value.toExponential(2).replaceAll("-", "−") : NONE;
}

// 3·10⁻⁴
function tenPower(value) {
  if (value >= 0.01 && value < 1000) return digits(value);
  const [front, power] = value.toExponential(0).split("e");
  const raised = [...power.replace("+", "")].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  return front === "1" ? `10${raised}` : `${front}·10${raised}`;
}
