// What a click does before the server answers: the button shows that it works, and waits for files on their way. The
// form is kept for a reload of this tab.
window.page = (() => {
  const POLL_MS = 100;
  const KEY = "latentsync-trt form";
  const FIELDS = ["video", "speech"];
  const part = (selector) => document.querySelector(selector);
  const arrives = (name) => Boolean(part(`#${name} .uploading`));
  const has = (name) => Boolean(part(`#${name} button[aria-label="Clear"]`)) && !part(`#${name} .upload-container`);
  const loads = () => FIELDS.some(arrives) || Boolean(part("#people-note .searching"));
  const rest = () => new Promise((done) => setTimeout(done, POLL_MS));
  let restored = false;

  // A file that has arrived is searched only after the server was told.
  async function loaded() {
    for (let calm = loads() ? 0 : 3; calm < 3; calm = loads() ? 0 : calm + 1) await rest();
  }

  const idle = () => document.querySelectorAll("button[aria-busy]").forEach((one) => one.removeAttribute("aria-busy"));
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("button:is(.lg, .sm)");
    if (button && !button.disabled) button.setAttribute("aria-busy", "true");
  });

  // Without a video and speech, nothing can be lip-synced.
  function enable() {
    const speaks = Boolean(part("#voices-note li"));
    const ready = FIELDS.every((name) => has(name) || arrives(name) || (name === "speech" && speaks));
    for (const button of document.querySelectorAll("#start, #trial, #anyway")) button.disabled = !ready;
  }
  new MutationObserver(enable).observe(document, { childList: true, subtree: true });

  function keep(form) {
    if (restored) sessionStorage.setItem(KEY, JSON.stringify(form));
    return [];
  }
  const kept = () => sessionStorage.getItem(KEY) ?? "";
  const restores = () => { restored = true; };

  return { loads, loaded, idle, keep, kept, restores };
})();
