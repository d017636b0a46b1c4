// <workpool-progress>: follows one work by the events of its stream, else by asking for its state again and again.
// Whatever comes is shown as text. Each change is also an event "workpool:state" of the element, with what was told as its detail.
"use strict";

(() => {
  if (customElements.get("workpool-progress")) return;

  // Browsers have six connections to a site that speaks HTTP/1.1: the page itself needs some.
  const STREAMS = 3;
  const ASK_EVERY = 2000, ASK_LATE = 30000, ERRORS = 3;
  let streams = 0;

  class WorkpoolProgress extends HTMLElement {
    connectedCallback() {
      this.stop();
      if (["success", "failed", "canceled", "finished"].includes(this.dataset.state)) return;
      if (this.dataset.events && window.EventSource && streams < STREAMS) this.listen();
      else this.ask(ASK_EVERY);
    }

    disconnectedCallback() {
      this.stop();
    }

    stop() {
      clearTimeout(this.timer);
      if (this.request) this.request.abort();
      if (this.source) {
        this.source.close();
        streams -= 1;
      }
      this.source = this.request = this.timer = null;
    }

    listen() {
      let errors = 0;
      const source = new EventSource(this.dataset.events);
      streams += 1;
      this.source = source;
      source.addEventListener("state", (event) => {
        errors = 0;
        this.show(JSON.parse(event.data));
      });
      // A stream that is over looks like one, too: the browser opens the next.
      source.onerror = () => {
        errors += 1;
        if (source === this.source && (source.readyState === EventSource.CLOSED || errors > ERRORS)) {
          this.stop();
          this.ask(ASK_EVERY);
        }
      };
    }

    async ask(wait) {
      const request = new AbortController();
      this.request = request;
      let next = ASK_EVERY;
      try {
        if (!document.hidden) {
          const answer = await fetch(this.dataset.status, { cache: "no-store", signal: request.signal });
          // The link is over: nothing more will be told.
          if (answer.status === 404) return;
          if (!answer.ok) throw new Error(answer.statusText);
          this.show(await answer.json());
        }
      } catch (error) {
        next = Math.min(wait * 2, ASK_LATE);
      }
      if (this.request === request) this.timer = setTimeout(() => this.ask(next), next);
    }

    show(told) {
      const name = told.state === "finished" ? told.kind || "finished" : told.state;
      const bar = this.querySelector("progress");
      const state = this.querySelector(".workpool-progress-state");
      const percent = this.querySelector(".workpool-progress-percent");
      const text = this.getAttribute(`data-text-${name}`) || name;
      if (told.progress) bar.value = told.progress.fraction;
      else if (name === "success" || name === "finished") bar.value = 1;
      else if (told.state !== "finished") bar.removeAttribute("value");
      else if (!bar.hasAttribute("value")) bar.value = 0;
      percent.textContent = told.progress ? `${Math.floor(told.progress.fraction * 100)} %` : "";
      // Said aloud by screen readers: only when it changes.
      if (state.textContent !== text) state.textContent = text;
      this.dataset.state = name;
      if (told.state === "finished") this.stop();
      this.dispatchEvent(new CustomEvent("workpool:state", { bubbles: true, detail: told }));
    }
  }

  customElements.define("workpool-progress", WorkpoolProgress);
})();
