// A job's life, and the heat map of times.
"use strict";

const Charts = {
  // What stands in an SVG: its old contents go, so that nothing piles up.
  svg(id, shapes) {
    const chart = document.getElementById(id);
    const made = shapes.map(([tag, name, attributes, title]) => {
      const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
      shape.setAttribute("class", name);
      for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
      if (title) {
        const text = document.createElementNS("http://www.w3.org/2000/svg", "title");
        text.textContent = title;
        shape.append(text);
      }
      return shape;
    });
    chart.replaceChildren(...made);
  },

  path(points) {
    return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  },

  // Points are [ms, here, far, limit, faults, waited ns]; changes [ms, limit].
  life(life) {
    const points = life.points;
    if (points.length < 2) return;
    const first = points[0][0], last = points[points.length - 1][0];
    const x = (ms) => 600 * (ms - first) / Math.max(last - first, 1);
    const top = Math.max(...points.map((p) => Math.max(p[1], p[2], p[3])), 1) * 1.05;
    const y = (bytes) => 160 - 158 * bytes / top;
    const line = (at) => points.map((p) => [x(p[0]), y(p[at])]);
    const area = (drawn, floor) => `${Charts.path(drawn)}L600 ${floor}L0 ${floor}Z`;
    const steps = [];
    points.forEach((p, i) => {
      if (i) steps.push([x(p[0]), y(points[i - 1][3])]);
      steps.push([x(p[0]), y(p[3])]);
    });
    const shapes = [
      ["path", "here", { d: area(line(1), 160) }],
      ["path", "far", { d: Charts.path(line(2)) }],
      ["path", "limit", { d: Charts.path(steps) }],
    ];
    for (const [ms, limit] of life.changes) {
      if (ms >= first) {
        const at = x(ms).toFixed(1);
        shapes.push(["path", "change", { d: `M${at} 0L${at} 160` }, `limit ${Format.size(limit)}`]);
      }
    }
    Charts.svg("life-memory", shapes);
    put(document.getElementById("life-top"), `(top: ${Format.size(top)})`);

    const rates = points.slice(1).map((p, i) => {
      const seconds = Math.max(p[0] - points[i][0], 1) / 1000;
      return [x(p[0]), Math.max(p[4] - points[i][4], 0) / seconds];
    });
    const most = Math.max(...rates.map((r) => r[1]), 1);
    const drawn = rates.map(([at, rate]) => [at, 100 - 97 * rate / most]);
    drawn.unshift([0, drawn[0][1]]);
    Charts.svg("life-faults", [["path", "faults", { d: area(drawn, 100) }]]);
    put(document.getElementById("life-faults-top"), `(top: ${Math.round(most)} a second)`);
    put(document.getElementById("life-from"), `${Format.time((last - first) / 1000)} ago`);
  },

  BUCKETS: 24,
  COLUMNS: 120,

  scale() {
    const list = document.getElementById("heat-scale");
    for (let bucket = 0; bucket < Charts.BUCKETS; bucket += 5) {
      list.append(make("li", "", Format.time(2 ** bucket / 1e6)));
    }
  },

  // Columns are { unix_s, classes: [[class, [bucket, count, …]], …] }; -1 stands for all classes.
  heat(columns, chosen) {
    const canvas = document.getElementById("heat");
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    const cells = columns.map((column) => {
      const cell = new Map();
      for (const [number, pairs] of column.classes) {
        if (chosen >= 0 && number !== chosen) continue;
        for (let i = 0; i < pairs.length; i += 2) {
          cell.set(pairs[i], (cell.get(pairs[i]) || 0) + pairs[i + 1]);
        }
      }
      return cell;
    });
    let most = 1;
    for (const cell of cells) for (const n of cell.values()) most = Math.max(most, n);
    cells.forEach((cell, i) => {
      const at = Charts.COLUMNS - cells.length + i;
      for (const [bucket, n] of cell) {
        context.globalAlpha = 0.15 + 0.85 * Math.log1p(n) / Math.log1p(most);
        context.fillRect(at, Charts.BUCKETS - 1 - bucket, 1, 1);
      }
    });
    context.globalAlpha = 1;
    const seconds = columns.length ? columns[columns.length - 1].unix_s - columns[0].unix_s : 0;
    put(document.getElementById("heat-from"), `${Format.time(seconds)} ago`);
  },

  // [[class, requests, median, 99 %], …] of what the columns hold, with ends of buckets in seconds.
  percentiles(columns, classes) {
    const sums = classes.map(() => new Array(Charts.BUCKETS).fill(0));
    for (const column of columns) {
      for (const [number, pairs] of column.classes) {
        for (let i = 0; i < pairs.length; i += 2) sums[number][pairs[i]] += pairs[i + 1];
      }
    }
    const rows = [];
    sums.forEach((counts, number) => {
      const all = counts.reduce((sum, n) => sum + n, 0);
      if (all === 0) return;
      const below = (part) => {
        let sum = 0;
        for (let bucket = 0; bucket < counts.length - 1; bucket++) {
          sum += counts[bucket];
          if (sum >= all * part) return Format.time(2 ** bucket / 1e6);
        }
        return "more than 4s";
      };
      rows.push([classes[number], String(all), below(0.5), below(0.99)]);
    });
    return rows;
  },
};
