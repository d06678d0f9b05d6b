"""The public conformance suite of the Open Job Spec, played against a real `tocsin dev`."""
