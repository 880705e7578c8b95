// A colour for everybody who guesses tokens, in the order of appearance; the target's own tokens stay plain.

const COLOURS = 6;
const classes = new Map([["target", "source-target"]]);

/** The class of a source; a new one gets a line in the legend. */
export function classOf(source) {
  if (!classes.has(source)) {
    classes.set(source, `source-${(classes.size - 1) % COLOURS}`);
    addToLegend(source);
  }
  return classes.get(source);
}

/** Show who is which colour. */
export function addToLegend(source) {
  const item = document.createElement("li");
  const swatch = document.createElement("span");
  swatch.className = `swatch ${classOf(source)}`;
  item.append(swatch, source === "target" ? "the model itself" : source);
  document.getElementById("legend").append(item);
}
