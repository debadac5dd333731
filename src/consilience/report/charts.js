"use strict";
// Charts: lines over rounds and the matrix of correlations, drawn by ECharts on canvas.

const FEW = 40; // unsuspicious parties with a line each: if there are more, their quantiles are drawn
const MOST = 16; // lines of parties that stand out
const MATRIX = 60; // parties in the matrix: more could not be told apart
const LABELLED = 7;
const GROUP_COLOURS = 4;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The colour of each party that stands out; members of a group share one.
function colours(judgements) {
  const found = new Map();
  let groups = 0;
  for (const { cause, members } of clusters(judgements)) {
    const name = cause === "together" ? `group${groups++ % GROUP_COLOURS}` : cause;
    for (const { party } of members) found.set(party, name);
  }
  return found;
}

class Chart {
  constructor(section, label) {
    this.section = section;
    this.holder = section.querySelector(".chart");
    this.holder.setAttribute("role", "img");
    this.canvas = echarts.init(this.holder, null, { renderer: "canvas" });
    this.label = label;
    this.holder.setAttribute("aria-label", `${label}. The table below has the numbers.`);
    this.seen = false;
    this.waiting = null;
    new ResizeObserver(() => this.canvas.resize()).observe(this.holder);
    new IntersectionObserver((changes) => this.look(changes.at(-1).isIntersecting), {
      rootMargin: "50px",
    }).observe(this.holder);
  }

  // A chart is drawn only when it comes into view.
  when(draw) {
    this.waiting = draw;
    if (this.seen) this.look(true);
  }

  look(seen) {
    this.seen = seen;
    const draw = seen && this.waiting;
    if (!draw) return;
    this.waiting = null;
    draw();
  }

  // For paper, draw at once, as there is no next frame, and in one layer, as browsers print only the
  // uppermost.
  print(width) {
    this.canvas.resize({ width });
    this.look(true);
    this.canvas.getZr().flush();
    const [lowest, ...layers] = this.holder.querySelectorAll("canvas");
    const pen = lowest?.getContext("2d");
    for (const layer of layers) {
      pen.save();
      pen.resetTransform();
      pen.drawImage(layer, 0, 0);
      pen.restore();
      layer.hidden = true;
    }
  }

  unprint() {
    for (const layer of this.holder.querySelectorAll("canvas")) layer.hidden = false;
    this.canvas.resize({ width: "auto" });
  }

  draw(option) {
    const textStyle = { fontFamily: getComputedStyle(document.body).fontFamily };
    this.canvas.setOption({ animation: false, textStyle, ...option }, { notMerge: true });
  }
}

// A chart over rounds, with a line at the picked round, which moves without redrawing the chart.
class LineChart extends Chart {
  constructor(section, label, { onRound, onParty }) {
    super(section, label);
    this.marker = element("div", { class: "marker" });
    this.holder.append(this.marker);
    this.canvas.getZr().on("click", (event) => {
      const [x, y] = [event.offsetX, event.offsetY];
      if (event.target || !this.canvas.containPixel("grid", [x, y])) return;
      onRound(this.canvas.convertFromPixel({ xAxisIndex: 0 }, x));
    });
    this.canvas.on("click", ({ seriesId }) => onParty(Number(seriesId)));
    this.canvas.on("finished", () => this.place());
  }

  mark(number) {
    this.picked = number;
    this.place();
  }

  place() {
    this.marker.hidden = true;
    if (!this.drawn) return;
    const x = this.canvas.convertToPixel({ xAxisIndex: 0 }, this.picked ?? NaN);
    const inside = this.canvas.containPixel("grid", [x, this.canvas.getHeight() / 2]);
    this.marker.hidden = !inside;
    if (inside) this.marker.style.transform = `translateX(${x}px)`;
  }

  draw(series, { rounds, log = false, tooltip, labels = false, zoom = false, format = brief }) {
    const quiet = { color: colour("muted"), fontSize: 11 };
    const wide = this.holder.clientWidth > 480;
    const named = labels ? legible(series, log) : new Set();
    const [first, last] = axisEnds(rounds);
    const lone = rounds.length === 1; // drawn in the middle; the axis shows only its number
    this.drawn = true;
    super.draw({
      grid: { left: 46, right: labels && wide ? 112 : 14, top: 12, bottom: zoom ? 64 : 26 },
      xAxis: {
        type: "value",
        min: first,
        max: last,
        minInterval: 1,
        axisLabel: {
          ...quiet,
          hideOverlap: true,
          formatter: (number) => (lone && number !== rounds[0].number ? "" : String(number)),
        },
        axisLine: { onZero: false, lineStyle: { color: colour("line") } },
        splitLine: { show: false },
      },
      yAxis: {
        ...(log ? logAxis(series) : { type: "value", scale: true }),
        axisLabel: { ...quiet, formatter: format, hideOverlap: true },
        splitLine: { lineStyle: { color: colour("line") } },
      },
      dataZoom: zoom
        ? [{ type: "slider", height: 22, bottom: 8, showDataShadow: false, textStyle: quiet }]
        : [],
      tooltip: {
        trigger: "axis",
        confine: true,
        className: "tip",
        transitionDuration: 0,
        axisPointer: { lineStyle: { color: colour("muted") } },
        formatter: ([{ axisValue }]) => tooltip(axisValue),
      },
      series: series.map((one) => ({
        type: "line",
        showSymbol: rounds.length < 3 && !one.silent,
        symbol: "circle",
        symbolSize: lone ? 9 : 4,
        sampling: "lttb",
        triggerLineEvent: true,
        emphasis: { disabled: true },
        itemStyle: { color: one.lineStyle.color },
        ...one,
        endLabel: named.has(one) && wide ? endLabel(one) : { show: false },
      })),
    });
  }
}

// The first and the last round on an axis; a single round has room on both sides.
function axisEnds(rounds) {
  const [first, last] = [rounds[0]?.number ?? 0, rounds.at(-1)?.number ?? 1];
  return rounds.length === 1 ? [first - 1, first + 1] : [first, Math.max(last, first + 1)];
}

// Powers of ten as ticks, or of two if there would be too few.
function logAxis(series) {
  const [low, high] = extent(series);
  return { type: "log", logBase: high / low > 100 ? 10 : 2 };
}

function extent(series) {
  let [low, high] = [Infinity, -Infinity];
  for (const { data } of series)
    for (const [, y] of data) [low, high] = [Math.min(low, y), Math.max(high, y)];
  return [low, high];
}

// The lines whose labels would not overlap those of earlier lines.
function legible(series, log) {
  const [low, high] = extent(series);
  const height = (y) => (log ? Math.log(y / low) / Math.log(high / low) : (y - low) / (high - low));
  const found = new Map();
  for (const one of series) {
    if (!one.label || !one.data.length) continue;
    const end = height(one.data.at(-1)[1]);
    if ([...found.values()].every((other) => Math.abs(other - end) > 0.06)) found.set(one, end);
  }
  return new Set(found.keys());
}

function endLabel({ label, lineStyle }) {
  return {
    show: true,
    formatter: () => label,
    color: lineStyle.color,
    width: 96,
    overflow: "truncate",
    distance: 6,
    fontSize: 12,
    fontWeight: 600,
  };
}

function points(rounds, value) {
  const found = [];
  for (const round of rounds) {
    const y = value(round);
    if (!Number.isNaN(y)) found.push([round.number, y]);
  }
  return found;
}

// A line for each party that stands out or is picked; the others in grey, or their quantiles.
function partySeries(run, judgements, value, picked) {
  const named = colours(judgements);
  const loud = judgements
    .filter((one, k) => (one.cause && k < MOST) || one.party === picked)
    .map((one) => one.party);
  const others = judgements.filter((one) => !one.cause && one.party !== picked).map((one) => one.party);
  const grey = { color: colour("other"), width: 1 };
  const series =
    others.length > FEW
      ? quantileLines(run.rounds, others, value, [0.1, 0.5, 0.9]).map((data, k) => ({
          id: `quantile ${k}`,
          data,
          lineStyle: { ...grey, width: k === 1 ? 2 : 1, type: k === 1 ? "solid" : "dashed" },
          silent: true,
          label: k === 1 ? "the others" : null,
        }))
      : others.map((party) => ({
          id: String(party),
          data: points(run.rounds, (round) => value(round, party)),
          lineStyle: grey,
          z: 1,
        }));
  const labels = seriesLabels(run, judgements, loud, picked);
  for (const party of loud) {
    const chosen = party === picked;
    const faded = picked !== null && !chosen;
    series.push({
      id: String(party),
      data: points(run.rounds, (round) => value(round, party)),
      lineStyle: {
        color: colour(named.get(party) ?? "picked"),
        width: chosen ? 3.5 : 2,
        opacity: faded ? 0.45 : 1,
      },
      label: labels.get(party) ?? null,
      z: chosen ? 4 : 3,
    });
  }
  return series;
}

function quantileLines(rounds, parties, value, shares) {
  const lines = shares.map(() => []);
  for (const round of rounds) {
    const values = Float64Array.from(parties, (party) => value(round, party)).filter((y) => !Number.isNaN(y));
    values.sort();
    if (values.length) lines.forEach((line, k) => line.push([round.number, quantile(values, shares[k])]));
  }
  return lines;
}

// One label for a group, on the line of its first member.
function seriesLabels(run, judgements, loud, picked) {
  if (picked !== null) return new Map([[picked, short(run.names[picked])]]);
  const found = new Map();
  for (const { cause, members } of clusters(judgements)) {
    const names = members.map((one) => short(run.names[one.party]));
    if (cause === "together")
      found.set(members[0].party, list(names, 2).replace(" and ", " +").replace(" more", ""));
    else members.slice(0, 3).forEach((one, k) => found.set(one.party, names[k]));
  }
  return new Map([...found].filter(([party]) => loud.includes(party)).slice(0, LABELLED));
}

// A long name is cut in the middle: names of parties often begin alike.
function short(name) {
  return name.length > 12 ? `${name.slice(0, 4)}…${name.slice(-7)}` : name;
}

// The matrix, sorted by group; order: positions among the round's members.
function drawMatrix(chart, run, round, order, picked) {
  const value = correlations(round);
  const names = order.map((member) => run.names[round.members[member]]);
  const data = [];
  order.forEach((a, row) =>
    order.forEach((b, column) => {
      const found = value(a, b);
      if (!Number.isNaN(found)) data.push([column, row, found]);
    }),
  );
  const few = order.length <= 30;
  const room = few ? Math.min(84, 7 * Math.max(...names.map((name) => short(name).length))) : 0;
  const axis = {
    type: "category",
    data: names,
    axisTick: { show: false },
    axisLine: { show: false },
    axisLabel: {
      show: few,
      interval: 0,
      fontSize: 11,
      formatter: short,
      color: (name, k) => (round.members[order[k]] === picked ? colour("picked") : colour("muted")),
    },
  };
  const legend = 46;
  chart.draw({
    grid: { left: room + 10, right: 10, top: 10, bottom: room + legend },
    xAxis: { ...axis, axisLabel: { ...axis.axisLabel, rotate: 90 } },
    yAxis: { ...axis, inverse: true },
    visualMap: {
      min: -1,
      max: 1,
      precision: 1,
      orient: "horizontal",
      left: "center",
      bottom: 0,
      itemHeight: 160,
      itemWidth: 10,
      text: ["together 1", "−1 opposed"],
      textStyle: { color: colour("muted"), fontSize: 11 },
      inRange: { color: ["opposed", "independent", "alike"].map(colour) },
    },
    tooltip: {
      confine: true,
      className: "tip",
      transitionDuration: 0,
      formatter: ({ data: [column, row, found] }) =>
        element(
          "div",
          {},
          row === column ? names[row] : `${names[row]} and ${names[column]}: ${found.toFixed(2)}`,
        ),
    },
    series: [
      {
        type: "heatmap",
        data,
        progressive: 0,
        itemStyle: few ? { borderWidth: 1, borderColor: colour("card") } : {},
        emphasis: { disabled: true },
      },
    ],
  });
}
