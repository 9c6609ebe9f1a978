"""ValidatingAdmissionPolicies as the real server has them: what they match, their CEL, and those that Shoal ships."""
