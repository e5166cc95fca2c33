// Numbers as the sentences of the page write them; encke/study/report/numbers.py is the original.

const NONE = "–";

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function grouped(value, decimals) {
  const [whole, rest] = Math.abs(value).toFixed(decimals).split(".");
  const sign = value < 0 ? "−" : "";
  return sign + whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
}

function digits(value, places = 3) {
  if (!known(value)) return NONE;
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  if (power < -4 || power > 8) return value.toExponential(places - 1).replaceAll("-", "−");
  const text = grouped(value, Math.max(0, places - 1 - power));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const SIZES = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];

function size(count) {
  if (!known(count)) return NONE;
  for (const [unit, factor] of SIZES) {
    if (count >= factor) {
      const value = count / factor;
      return `${value < 100 ? value.toFixed(1) : grouped(value, 0)} ${unit}`;
    }
  }
  return `${count.toFixed(0)} B`;
}

// The unit in which an axis up to `count` bytes is labelled.
function sizeUnit(count) {
  return SIZES.find(([, factor]) => count >= factor) ?? ["B", 1];
}

function times(value) {
  if (!known(value)) return NONE;
  return `${value.toFixed(value < 3 ? 2 : value < 100 ? 1 : 0)}×`;
}

// Plain bytes over kept bytes, in words: some settings keep more than plain training.
function saved(ratio) {
  if (!known(ratio) || ratio <= 0) return NONE;
  return ratio >= 1 ? `${times(ratio)} less` : `${times(1 / ratio)} more`;
}

function percent(share, places = 3) {
  return known(share) ? `${digits(100 * share, places)} %` : NONE;
}

function measure(value, unit) {
  if (!known(value)) return NONE;
  const text = unit === "%" ? value.toFixed(2).replace("-", "−") : digits(value, 4);
  return unit ? `${text} ${unit}` : text;
}

function difference(value, unit) {
  if (!known(value)) return NONE;
  const text = Math.abs(value).toFixed(unit === "%" ? 2 : 3);
  const sign = Number(text) === 0 ? "±" : value < 0 ? "−" : "+";
  return `${sign}${text}${unit === "%" ? " points" : unit ? ` ${unit}` : ""}`;
}

function counted(count, one) {
  return `${grouped(count, 0)} ${count === 1 ? one : `${one}s`}`;
}
