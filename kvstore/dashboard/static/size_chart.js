// Hit share against the capacity, on a logarithmic scale of sizes.
// data: JSON {points: [[bytes, share]], models: [{name, shares}], marks: [{at, share, name}], sentence, summary, note, empty}
// models: what each would hit with all of a capacity to itself, one share a point.
import { axis, chart, tip } from "plot";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const MARK_HEIGHT = 15;

function size(bytes) {
  const unit = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), UNITS.length - 1);
  return `${+(bytes / 2 ** (10 * unit)).toPrecision(3)} ${UNITS[unit]}`;
}

const place = (bytes) => Math.log2(Math.max(bytes, 1));
const percent = (share, digits) => `${(share * 100).toFixed(digits)} %`;

function curve(view, colour, marks, top) {
  const [dram, ink, soft, card, leaf] = ["dram", "ink", "soft", "card", "leaf"].map((name) => colour(name));
  return {
    id: "curve",
    type: "line",
    data: view.points.map(([bytes, share]) => [place(bytes), share]),
    color: dram,
    showSymbol: false,
    symbolSize: 8,
    itemStyle: { color: card, borderColor: leaf, borderWidth: 2.5 },
    lineStyle: { width: 2.5, join: "round", color: dram },
    areaStyle: { opacity: 0.12, color: dram },
    emphasis: { lineStyle: { width: 2.5 } },
    markLine: {
      silent: true,
      symbol: "none",
      animation: false,
      lineStyle: { color: soft, width: 1, type: [3, 3] },
      data: marks.map((mark, i) => [
        {
          coord: [mark.x, 0],
          name: `${mark.name} · ${percent(mark.share, 0)}`,
          label: {
            position: "end",
            formatter: "{b}",
            color: ink,
            fontSize: 11.5,
            fontWeight: 600,
            align: mark.flip ? "right" : "left",
            backgroundColor: card, // over another's line
          },
        },
        { coord: [mark.x, top], y: MARK_HEIGHT * (i + 1) }, // one label above the other
      ]),
    },
    markPoint: {
      silent: true,
      symbol: "circle",
      symbolSize: 8,
      animation: false,
      label: { show: false },
      itemStyle: { color: card, borderColor: leaf, borderWidth: 2.5 },
      data: marks.map((mark) => ({ coord: [mark.x, mark.share] })),
    },
  };
}

function modelCurve(view, colour, model, i) {
  const soft = colour("soft");
  return {
    id: `model-${i}`,
    type: "line",
    silent: true,
    data: view.points.map(([bytes], at) => [place(bytes), model.shares[at]]),
    showSymbol: false,
    lineStyle: { width: 1.25, type: [6 - i, 2 + i], color: soft },
    endLabel: { show: true, formatter: model.name, color: soft, fontSize: 11, align: "right", verticalAlign: "bottom", offset: [-4, -4] },
    labelLayout: { moveOverlap: "shiftY" },
  };
}

export default chart({
  head: `<p class="kv-sentence">{{ view.sentence }}</p>`,
  foot: `<p class="kv-note">{{ view.note }}</p>`,
  methods: {},
  isEmpty: (view) => !view.points.length,
  said: (view) => `${view.summary} ${view.sentence} ${view.marks.map((each) => `${each.name}: ${percent(each.share, 0)}`).join(", ")}`,
  places: (view) => view.points.length,
  table: (view) => ({
    columns: ["Capacity", "Would hit", ...view.models.map((each) => each.name)],
    rows: view.points.map(([bytes, share], at) => [
      size(bytes),
      percent(share, 1),
      ...view.models.map((each) => percent(each.shares[at], 1)),
    ]),
  }),
  option(view, colour, width) {
    const [low, high] = [view.points[0][0], view.points.at(-1)[0]].map(place);
    const highest = Math.max(view.points.at(-1)[1], ...view.models.map((each) => each.shares.at(-1)));
    const most = Math.min(highest * 1.05 || 0.1, 1);
    const step = most > 0.5 ? 0.25 : 0.1;
    const top = Math.ceil(most / step - 1e-9) * step;
    const every = Math.max(Math.ceil((high - low) / Math.max(Math.floor(width / 80), 2)), 1);
    const sizes = []; // powers of two, which no axis of ECharts finds by itself
    for (let at = Math.ceil(low / every) * every; at <= high; at += every) sizes.push(at);
    const marks = view.marks
      .map((mark) => ({ ...mark, x: Math.min(Math.max(place(mark.at), low), high) }))
      .map((mark) => ({ ...mark, flip: mark.x - low > (high - low) / 2 }));
    return {
      grid: { left: 42, right: 22, top: 14 + MARK_HEIGHT * marks.length, bottom: 22, outerBoundsMode: "none" },
      xAxis: axis(colour, {
        type: "value",
        min: low,
        max: high,
        axisLabel: { customValues: sizes, formatter: (at) => size(2 ** at) },
      }),
      yAxis: axis(colour, {
        type: "value",
        min: 0,
        max: top,
        interval: step,
        splitLine: { show: true, lineStyle: { color: colour("line") } },
        axisLabel: { formatter: (share) => percent(share, 0) },
      }),
      series: [curve(view, colour, marks, top), ...view.models.map((each, i) => modelCurve(view, colour, each, i))],
      tooltip: {
        axisPointer: { type: "line", snap: true, label: { show: false }, lineStyle: { color: colour("ink"), opacity: 0.3 } },
        formatter([{ dataIndex }]) {
          const [bytes, share] = view.points[dataIndex];
          const alone = view.models.map((each) => ({ name: each.name, text: percent(each.shares[dataIndex], 1) }));
          return tip(size(bytes), [{ name: "would hit", text: percent(share, 1) }, ...alone]);
        },
      },
    };
  },
});
