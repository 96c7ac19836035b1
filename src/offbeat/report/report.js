"use strict";
(async () => {
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  if (!("DecompressionStream" in window)) {
    for (const place of document.querySelectorAll(".plot"))
      place.textContent = "This browser is too old for the figures: it lacks DecompressionStream.";
    return;
  }
  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);
  const page = JSON.parse(await unpacked("page-data"));
  const config = { responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  const at = (id) => document.getElementById(id);

  function draw(id, figure, nothing) {
    const place = at(id);
    if (figure) {
      if (!place.classList.contains("js-plotly-plot")) place.replaceChildren();
      Plotly.react(place, figure.data, figure.layout, config);
    } else {
      Plotly.purge(place);
      const words = document.createElement("p");
      words.className = "empty";
      words.textContent = nothing;
      place.replaceChildren(words);
    }
  }

  const chosen = { axis: "time" }, measure = at("measure");
  measure.value = page.first_measure;
  function drawCurves() {
    const figure = page.curves[measure.value + "/" + chosen.axis];
    draw("curves", figure, "No " + (measure.value || page.first_measure) + " was recorded.");
    for (const button of document.querySelectorAll(".switch button"))
      button.setAttribute("aria-pressed", String(chosen[button.dataset.sets] === button.dataset.to));
  }
  for (const button of document.querySelectorAll(".switch button"))
    button.addEventListener("click", () => {
      chosen[button.dataset.sets] = button.dataset.to;
      drawCurves();
    });
  measure.addEventListener("change", drawCurves);
  drawCurves();

  const label = at("timeline-label"), seed = at("timeline-seed");
  function drawTimeline() {
    const timeline = page.timelines[label.selectedIndex].runs[seed.selectedIndex];
    draw("timeline", timeline.figure, "No client joined this run.");
    at("timeline-caption").textContent = timeline.caption;
  }
  function offerSeeds() {
    const runs = page.timelines[label.selectedIndex].runs;
    seed.replaceChildren(...runs.map((run) => new Option("seed " + run.seed)));
    drawTimeline();
  }
  for (const group of page.timelines) label.add(new Option(group.label));
  label.addEventListener("change", offerSeeds);
  seed.addEventListener("change", drawTimeline);
  offerSeeds();

  if (page.clients) draw("clients", page.clients, "");
  if (page.privacy) draw("privacy", page.privacy, "");
  draw("staleness", page.staleness, "No update arrived.");
  draw("participation", page.participation, "No client joined.");
})();
