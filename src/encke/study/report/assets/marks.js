// Each kind of setting has a colour, a shape and, by variant, a dash: no picture tells settings
// apart by colour alone.

const SHAPE_OF = {
  plain: "circle",
  encke: "diamond",
  fixed: "cross",
  comet: "star",
  group: "down",
  zfp: "plus",
  bf16: "up",
  checkpoint: "square",
  save_on_cpu: "hexagon",
};
const DASHES = [null, "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2", "1 4"];

function polygon(corners, radius, turn = 0, inner = null) {
  const count = inner === null ? corners : 2 * corners;
  const points = [];
  for (let i = 0; i < count; i += 1) {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2 + turn;
    const reach = inner !== null && i % 2 ? radius * inner : radius;
    points.push([reach * Math.cos(angle), reach * Math.sin(angle)]);
  }
  return path(points, { closed: true });
}

function bars(radius, turn) {
  const thin = radius * 0.36;
  const corners = [
    [thin, radius], [thin, thin], [radius, thin], [radius, -thin], [thin, -thin], [thin, -radius],
    [-thin, -radius], [-thin, -thin], [-radius, -thin], [-radius, thin], [-thin, thin], [-thin, radius],
  ];
  const [c, s] = [Math.cos(turn), Math.sin(turn)];
  return path(corners.map(([x, y]) => [c * x - s * y, s * x + c * y]), { closed: true });
}

const SHAPES = {
  circle: (r) => polygon(20, r * 0.95),
  diamond: (r) => polygon(4, r * 1.25),
  square: (r) => polygon(4, r * 1.2, Math.PI / 4),
  up: (r) => polygon(3, r * 1.25),
  down: (r) => polygon(3, r * 1.25, Math.PI),
  hexagon: (r) => polygon(6, r * 1.1),
  star: (r) => polygon(5, r * 1.35, 0, 0.45),
  plus: (r) => bars(r * 1.15, 0),
  cross: (r) => bars(r * 1.15, Math.PI / 4),
};

function kindOf(policy) {
  return Object.hasOwn(SHAPE_OF, policy.kind) ? policy.kind : "other";
}

function dashOf(policy) {
  return DASHES[policy.variant % DASHES.length];
}

function mark(policy, x, y, radius = 5.5) {
  const shape = SHAPES[SHAPE_OF[kindOf(policy)] ?? "circle"];
  return svg("path", {
    d: shape(radius),
    transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
    class: `mark kind-${kindOf(policy)} ${policy.peer ? "hollow" : "filled"}`,
  });
}

// The sample beside a setting's name: its line and its shape.
function sample(policy) {
  return svg(
    "svg",
    { class: "sample", width: 34, height: 16, viewBox: "0 0 34 16", "aria-hidden": "true" },
    svg("path", { d: "M1,8H33", class: `line kind-${kindOf(policy)}`, "stroke-dasharray": dashOf(policy) }),
    mark(policy, 17, 8, 5),
  );
}
