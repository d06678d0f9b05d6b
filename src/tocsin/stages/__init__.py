"""Who decides. One small file each: subscribe, fold, decide, append; no acknowledgement, retry or logging in any of them."""
