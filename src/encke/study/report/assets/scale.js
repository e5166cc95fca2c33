// From values to places on the screen, and which values to label.

function linear(low, high, from, to) {
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  place.low = low;
  place.high = high;
  place.ticks = (count) => {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
      found.push(Number((i * step).toPrecision(12)));
    }
    return found;
  };
  return place;
}

function logarithmic(low, high, from, to) {
  if (!(high > low)) [low, high] = [low / 2, low * 2];
  const whole = Math.log(high / low);
  const place = (value) => from + (Math.log(value / low) / whole) * (to - from);
  place.low = low;
  place.high = high;
  place.ticks = (count) => {
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first) / Math.max(1, count)));
    const marks = every > 1 || last - first >= count ? [1] : last - first > 2 ? [1, 3] : [1, 2, 5];
    const found = [];
    for (let power = first; power <= last; power += every) {
      for (const m of marks) {
        const value = Number(`${m}e${power}`);
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found.length > 1 ? found : [low, high].map((value) => Number(value.toPrecision(2)));
  };
  return place;
}

function extent(values) {
  const found = values.filter(known);
  return found.length ? [Math.min(...found), Math.max(...found)] : null;
}
