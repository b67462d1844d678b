"""The script of report pages: draws the figures in the page's colours, and changes steps."""

SCRIPT = """
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const shown = new Map();

  const themed = (layout) => {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(name).trim();
    const copy = structuredClone(layout);
    copy.paper_bgcolor = "rgba(0,0,0,0)";
    copy.plot_bgcolor = "rgba(0,0,0,0)";
    const family = getComputedStyle(document.body).fontFamily;
    copy.font = { family, size: 12, color: value("--soft") };
    copy.hoverlabel = {
      align: "left", bgcolor: value("--card"), bordercolor: value("--line"),
      font: { color: value("--ink"), size: 12.5 },
    };
    copy.legend = Object.assign({ bgcolor: "rgba(0,0,0,0)" }, copy.legend);
    for (const key of Object.keys(copy)) {
      if (/^[xy]axis/.test(key)) {
        copy[key].gridcolor = value("--grid");
        copy[key].linecolor = value("--line");
      }
    }
    for (const note of copy.annotations || []) {
      note.font = { color: value("--ink"), size: 12.5 };
    }
    return copy;
  };

  const draw = (element, name) => {
    shown.set(element, name);
    const figure = figures[name];
    const edge = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
    for (const trace of figure.data) {
      if (trace.type === "bar" && trace.marker.line) {
        trace.marker.line.color = edge;
      }
    }
    element.style.minHeight = figure.layout.height + "px";
    Plotly.react(element, figure.data, themed(figure.layout), {
      responsive: true, displaylogo: false, displayModeBar: false,
    });
  };

  for (const element of document.querySelectorAll("[data-figure]")) {
    draw(element, element.dataset.figure);
  }
  for (const button of document.querySelectorAll("[data-shows]")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-shows]")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      draw(document.getElementById("timeline"), button.dataset.shows);
    });
  }
  dark.addEventListener("change", () => shown.forEach((name, element) => draw(element, name)));
})();
"""
