/* Refreshes the part of the page in #sync-live. Elements stay the same ones, so that focus, selection,
   scrolling and open details survive. The page works without this file too. */
'use strict';
{
    const REST = 2000;  // ms between a response and the next request; longer if responses are slow
    const SILENCE = 10000;  // ms between two sentences for screen readers
    const part = document.getElementById('sync-live');
    const bar = document.getElementById('sync-live-bar');
    const toggle = document.getElementById('sync-live-on');
    const state = document.getElementById('sync-live-state');
    const spokenText = document.getElementById('sync-live-spoken');
    let timer = null;
    let loading = false;
    let spoken = 0;

    function copyAttributes(from, to) {
        for (const {name} of [...to.attributes]) {
            // The visitor opens and closes details, so `open` stays.
            if (!from.hasAttribute(name) && name !== 'open') {
                to.removeAttribute(name);
            }
        }
        for (const {name, value} of [...from.attributes]) {
            if (to.getAttribute(name) !== value) {
                to.setAttribute(name, value);
            }
        }
    }

    function alike(a, b) {
        return a !== null && a.nodeName === b.nodeName && (a.id || '') === (b.id || '');
    }

    /* Make the children of `to` equal to those of `from`. Elements with an id keep their identity. */
    function morph(from, to) {
        const kept = new Map([...to.children].filter((e) => e.id).map((e) => [e.id, e]));
        let at = to.firstChild;
        for (const wanted of [...from.childNodes]) {
            let found = wanted.id ? kept.get(wanted.id) || null : at;
            if (!alike(found, wanted)) {
                to.insertBefore(wanted, at);
                continue;
            }
            if (found === at) {
                at = at.nextSibling;
            } else {
                to.insertBefore(found, at);
            }
            if (found.nodeType !== Node.ELEMENT_NODE) {
                if (found.nodeValue !== wanted.nodeValue) {
                    found.nodeValue = wanted.nodeValue;
                }
            } else {
                copyAttributes(wanted, found);
                morph(wanted, found);
            }
        }
        while (at) {
            const next = at.nextSibling;
            at.remove();
            at = next;
        }
    }

    function update(html) {
        const focused = part.contains(document.activeElement) ? document.activeElement : null;
        const fresh = document.createElement('template');
        fresh.innerHTML = html;
        morph(fresh.content, part);
        if (focused && document.activeElement !== focused) {
            // A moved element loses the focus. If it is gone, the refreshed part gets the focus.
            (part.contains(focused) ? focused : part).focus({preventScroll: true});
        }
        const summary = part.querySelector('[data-summary]');
        const text = summary ? summary.dataset.summary : '';
        if (text !== spokenText.textContent && Date.now() - spoken > SILENCE) {
            spokenText.textContent = text;
            spoken = Date.now();
        }
    }

    function busyReading() {
        const selection = document.getSelection();
        return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    }

    async function refresh() {
        clearTimeout(timer);
        if (loading || document.hidden || !toggle.checked) {
            return;
        }
        loading = true;
        const began = Date.now();
        try {
            const answer = await fetch(part.dataset.url, {
                credentials: 'same-origin',
                redirect: 'manual',
                signal: AbortSignal.timeout(15000),
            });
            // A redirect leads to the login page: 403 and 404 are just as final.
            if (answer.type === 'opaqueredirect' || answer.status === 403 || answer.status === 404) {
                state.textContent = state.dataset.ended;
                toggle.checked = false;
                return;
            }
            if (!answer.ok && answer.status !== 503) {
                throw new Error(answer.status);
            }
            const html = await answer.text();
            state.textContent = '';
            if (toggle.checked && !busyReading()) {
                update(html);
            }
        } catch {
            state.textContent = state.dataset.lost;
        } finally {
            loading = false;
            timer = setTimeout(refresh, Math.max(REST, 4 * (Date.now() - began)));
        }
    }

    bar.hidden = false;
    toggle.addEventListener('change', refresh);
    document.addEventListener('visibilitychange', refresh);
    timer = setTimeout(refresh, REST);
}
