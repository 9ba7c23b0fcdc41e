// Numbers as the rest of Muninn writes them: three digits and a unit.
"use strict";

const Format = {
  size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let value = bytes, unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    const digits = unit === 0 || value >= 100 ? 0 : value < 10 ? 2 : 1;
    return value.toFixed(digits) + units[unit];
  },
  perSecond(bytes) {
    return bytes < 1 ? "-" : Format.size(bytes) + "/s";
  },
  count(rate) {
    return Math.round(rate) === 0 ? "-" : String(Math.round(rate));
  },
  percent(part) {
    return Math.round(part * 100) === 0 ? "-" : Math.round(part * 100) + "%";
  },
  // Seconds.
  time(seconds) {
    const ns = seconds * 1e9;
    const [value, unit] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "µs"] : ns < 1e9 ? [ns / 1e6, "ms"]
      : seconds < 120 ? [seconds, "s"] : [seconds / 60, "min"];
    const digits = unit === "ns" || value >= 100 ? 0 : value < 10 ? 2 : 1;
    const text = value.toFixed(digits);
    return (text.includes(".") ? text.replace(/\.?0+$/, "") : text) + unit;
  },
  many(n, what) {
    return n === 1 ? `1 ${what}` : `${n} ${what}s`;
  },
};

// Elements. Names of servers, programs and clients only ever become text, never markup.
function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Writes only what is different: what stays as it is costs the browser nothing.
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A colour that a name always has, whatever its process is.
function hue(name) {
  const base = name.replace(/ \(\d+\)$/, "");
  let sum = 0;
  for (let i = 0; i < base.length; i++) sum = (sum * 31 + base.charCodeAt(i)) >>> 0;
  return String((sum * 47) % 360);
}

// A bar of parts of a whole: [[name, bytes], …]. What is left is free.
function drawBar(bar, parts, whole, rest) {
  const total = Math.max(whole, parts.reduce((sum, part) => sum + part[1], rest), 1);
  const wanted = parts.length + (rest > 0 ? 1 : 0);
  while (bar.children.length > wanted) bar.lastChild.remove();
  while (bar.children.length < wanted) bar.append(make("span"));
  const width = (bytes) => (100 * bytes / total).toFixed(2) + "%";
  parts.forEach(([name, bytes], i) => {
    const part = bar.children[i];
    part.className = "";
    part.style.setProperty("--hue", hue(name));
    part.style.width = width(bytes);
    part.title = `${name}: ${Format.size(bytes)}`;
  });
  if (rest > 0) {
    const part = bar.children[parts.length];
    part.className = "rest";
    part.style.width = width(rest);
    part.title = `others: ${Format.size(rest)}`;
  }
}
