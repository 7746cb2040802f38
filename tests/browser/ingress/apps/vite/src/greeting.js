export const greeting = "Hello from the sandbox";
