// Times and durations as text. The API's times are UTC; a page shows them in the viewer's zone, or in a job's.

export const LOCAL_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

const formats = new Map();

function format(zone, options) {
  const key = `${zone} ${JSON.stringify(options)}`;
  if (!formats.has(key)) {
    let made;
    try {
      made = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone, hourCycle: "h23" });
    } catch {
      made = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: "UTC", hourCycle: "h23" });
    }
    formats.set(key, made);
  }
  return formats.get(key);
}

const FULL = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };

function fields(time, zone, options) {
  const parts = format(zone, options).formatToParts(new Date(time));
  return Object.fromEntries(parts.map((part) => [part.type, part.value]));
}

/** `2026-03-29 02:30:00`, in a zone. */
export function stamp(time, zone = LOCAL_ZONE) {
  if (!time) return "";
  const { year, month, day, hour, minute, second } = fields(time, zone, FULL);
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`;
}

/** `14:02:07` today, else with the day. */
export function clock(time, zone = LOCAL_ZONE) {
  if (!time) return "";
  const text = stamp(time, zone);
  return text.slice(0, 10) === stamp(Date.now(), zone).slice(0, 10) ? text.slice(11) : text.slice(0, 16);
}

/** `3 min ago`, `in 2 h`. */
export function relative(time, now = Date.now()) {
  if (!time) return "";
  const seconds = (new Date(time).getTime() - now) / 1000;
  const text = duration(Math.abs(seconds));
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

const UNITS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

/** `850 ms`, `12 s`, `3 min 20 s`, `2 d 4 h`: the two largest units of a number of seconds. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  let rest = Math.round(seconds);
  if (rest < 60) return `${rest} s`;
  const parts = [];
  for (const [size, unit] of [...UNITS, [1, "s"]]) {
    if (rest >= size && parts.length < 2) {
      parts.push(`${Math.floor(rest / size)} ${unit}`);
      rest %= size;
    } else if (parts.length === 1) break;
  }
  return parts.join(" ");
}

export function milliseconds(value) {
  return value === null || value === undefined ? "" : duration(value / 1000);
}
