"""The style sheet of report pages: light and dark, wide and narrow, no font from anywhere else."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f5f6f9; --card: #ffffff; --ink: #171b24; --soft: #5c6678; --line: #e2e6ee;
  --grid: #e9ecf2; --accent: #0b63b5; --accent-soft: #e8f1fb;
  --good: #0a7a55; --good-soft: #e0f4ec; --fair: #96600a; --fair-soft: #fdf1da;
  --bad: #b3362b; --bad-soft: #fbe7e5; --shadow: 0 1px 2px rgba(22, 28, 45, .06);
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1218; --card: #171b23; --ink: #e8ebf1; --soft: #98a2b5; --line: #272d39;
    --grid: #262c38; --accent: #6fb4f5; --accent-soft: #17293d;
    --good: #5fd3a6; --good-soft: #12302a; --fair: #f0bd62; --fair-soft: #352a14;
    --bad: #f28b81; --bad-soft: #3a1d1c; --shadow: none;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 "Inter", ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto,
    "Helvetica Neue", Arial, sans-serif;
  font-feature-settings: "tnum"; font-variant-numeric: tabular-nums;
}
main, header.top, footer { max-width: 1200px; margin: 0 auto; padding: 0 28px; }
header.top { padding-top: 36px; }
.brand {
  color: var(--accent); font-weight: 650; font-size: 12px; letter-spacing: .12em;
  text-transform: uppercase;
}
h1 {
  margin: 2px 0 4px; font-size: 30px; line-height: 1.2; letter-spacing: -.02em; font-weight: 680;
  overflow-wrap: anywhere;
}
h2 { margin: 44px 0 4px; font-size: 20px; letter-spacing: -.01em; font-weight: 650; }
h3 { margin: 0; font-size: 15px; font-weight: 620; }
p { margin: 0; }
.lead, .why { color: var(--soft); max-width: 130ch; }
.why { font-size: 13.5px; margin-top: 2px; }
.cards {
  display: grid; gap: 14px; margin-top: 24px;
  grid-template-columns: repeat(auto-fit, minmax(164px, 1fr));
}
.card, .panel {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  box-shadow: var(--shadow);
}
.card { padding: 14px 16px 13px; }
.card .label { color: var(--soft); font-size: 12.5px; font-weight: 550; }
.card .value {
  margin: 3px 0 2px; font-size: 21px; line-height: 1.25; font-weight: 660; letter-spacing: -.02em;
}
.card .unit { font-size: 13px; font-weight: 550; color: var(--soft); letter-spacing: 0; }
.card .sub { color: var(--soft); font-size: 12.5px; line-height: 1.4; }
.panel { padding: 18px 20px 12px; margin-top: 14px; min-width: 0; }
.pair { display: grid; gap: 14px; margin-top: 14px; grid-template-columns: 1fr 1fr; }
.pair > .panel { margin-top: 0; }
.pair > .panel:only-child { grid-column: 1 / -1; }
.chart { margin-top: 8px; min-width: 0; }
.scroll { overflow-x: auto; }
.legend {
  display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 12px 0 2px; padding: 0; list-style: none;
  font-size: 12.5px; color: var(--soft);
}
.legend li { display: flex; align-items: center; gap: 7px; white-space: nowrap; }
.swatch { width: 13px; height: 13px; border-radius: 3px; flex: none; }
.steps { display: flex; flex-wrap: wrap; gap: 6px; margin: 2px 0 0; border: 0; padding: 0; }
.steps legend { padding: 0; margin-bottom: 6px; font-size: 12.5px; color: var(--soft); }
.steps button {
  font: inherit; font-size: 13px; padding: 4px 12px; border-radius: 999px; cursor: pointer;
  color: var(--ink); background: transparent; border: 1px solid var(--line);
}
.steps button small { color: var(--soft); font-size: 12px; margin-left: 5px; }
.steps button:hover { border-color: var(--accent); }
.steps button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.steps button[aria-pressed="true"] {
  background: var(--accent-soft); border-color: var(--accent); color: var(--accent);
  font-weight: 600;
}
.steps button[aria-pressed="true"] small { color: inherit; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 8px 12px 8px 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-size: 12.5px; font-weight: 560; white-space: nowrap; }
td { border-top: 1px solid var(--line); }
th.number, td.number { text-align: right; padding-right: 18px; white-space: nowrap; }
td.exact { white-space: nowrap; }
td.clip { min-width: 190px; overflow-wrap: anywhere; }
td.clip span { display: block; color: var(--soft); font-size: 12.5px; }
td.reason { min-width: 200px; color: var(--soft); overflow-wrap: anywhere; }
tr.ours td { font-weight: 650; }
.badge {
  display: inline-block; padding: 0 9px; border-radius: 999px; font-size: 12px; font-weight: 600;
  line-height: 1.65;
}
.badge.kept { color: var(--good); background: var(--good-soft); }
.badge.trimmed { color: var(--fair); background: var(--fair-soft); }
.badge.rejected { color: var(--bad); background: var(--bad-soft); }
.samples {
  display: grid; gap: 14px; margin-top: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 620px), 1fr));
}
.samples figure { margin: 0; padding: 10px; }
.samples figcaption {
  margin-top: 6px; font-size: 12.5px; color: var(--soft); overflow-wrap: anywhere;
}
.samples img { display: block; width: 100%; height: auto; border-radius: 6px; }
.clips {
  display: grid; gap: 14px; margin-top: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 230px), 1fr));
}
.clips figure { margin: 0; padding: 10px; }
.clips img, .clips .none {
  display: block; width: 100%; height: 150px; object-fit: contain; border-radius: 6px;
  background: var(--page);
}
.clips .none { padding-top: 62px; text-align: center; color: var(--soft); font-size: 12.5px; }
.clips figcaption { margin-top: 8px; font-size: 12.5px; overflow-wrap: anywhere; }
.clips figcaption b { margin-right: 7px; }
.clips figcaption p { margin-top: 3px; color: var(--soft); }
.share {
  display: inline-block; width: 140px; height: 9px; margin-right: 9px; border-radius: 5px;
  background: var(--grid); overflow: hidden;
}
.share span { display: block; height: 100%; background: var(--accent); }
.notes { margin: 20px 0 0; padding: 11px 16px 11px 34px; border-radius: 10px; font-size: 13.5px;
  color: var(--fair); background: var(--fair-soft); overflow-wrap: anywhere; }
footer { padding-top: 36px; padding-bottom: 44px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 860px) { .pair { grid-template-columns: 1fr; } }
@media (max-width: 560px) {
  main, header.top, footer { padding-left: 14px; padding-right: 14px; }
  header.top { padding-top: 22px; }
  h1 { font-size: 24px; }
  .panel { padding: 14px 12px 8px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 10px; }
  .card .value { font-size: 19px; }
}
@media print { .panel { break-inside: avoid; } .steps { display: none; } }
"""
