// Lets the search run where pages are files: browsers start no Worker from a file, so its script runs in a hidden frame.
// The theme looks for the name IFrameWorker, to find its other scripts.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><body></body>");
      inside.document.close();
      const load = (source) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: source, onload: resolve, onerror: reject });
        inside.document.body.append(script);
      });
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
