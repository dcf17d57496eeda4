// The page, piece by piece; the charts come last, when all else can be seen already.
document.getElementById("title").textContent = DATA.title;
document.getElementById("versions").textContent = `${DATA.made ? `${DATA.made}; ` : ""}${DATA.versions}; step ${DATA.num_steps} of ${DATA.num_steps} is measured`;
showSummary();
startCopying();
fillTree(document.getElementById("forward"), "forward");
fillTree(document.getElementById("backward"), "backward");
startSearch();
showMemory();
showTime();
showCaptures();
showPrograms();
showParity();
window.addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  startCharts();
})));
