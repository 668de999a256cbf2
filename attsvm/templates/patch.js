"use strict";
(function () { // after common.js
  const count = (values) => values.map((_, k) => k + 1);
  if (byId("leads")) {
    chart(byId("leads"), {
      title: "Lead of the right document, failures in the order of their leads before", xs: count(data.before),
      lines: [{ label: "before", values: data.before }, { label: "after", values: data.after }],
      x: { label: "failure", whole: true }, y: { label: "lead" },
    });
  }
  if (byId("values")) {
    chart(byId("values"), {
      title: "Singular values of the change", xs: count(data.values),
      lines: [{ label: "singular value", values: data.values }],
      x: { label: "number", whole: true }, y: { label: "" },
    });
  }
})();
